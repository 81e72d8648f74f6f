"""Slurm's time limits as seconds."""

from __future__ import annotations

import math
import re

FORMS = (
    r"(?P<m>\d+)(:(?P<s>\d+))?",
    r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)",
    r"(?P<d>\d+)-(?P<h>\d+)(:(?P<m>\d+)(:(?P<s>\d+))?)?",
)
"""What the manual page of sbatch lists for ``--time``."""
UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def seconds(text: str) -> float | None:
    """The seconds of a time limit such as ``30``, ``1:30:00`` or ``2-12``; inf without limit, None for other text.

    Zero asks for no limit, as ``sbatch`` has it.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return math.inf
    for form in FORMS:
        if match := re.fullmatch(form, text.strip()):
            return sum(int(value) * UNITS_S[unit] for unit, value in match.groupdict().items() if value) or math.inf
    return None
