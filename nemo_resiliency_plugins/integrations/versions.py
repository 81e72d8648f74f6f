"""The oldest versions of the trainers' libraries that were tried."""

from __future__ import annotations

from nemo_resiliency_plugins.errors import UnsupportedError

LIGHTNING = (2, 5, 5)
"""2.4 begins the epoch anew when it resumes in the middle of it, and ends with other weights."""
TRANSFORMERS = (5,)


def require(library: str, version: str, oldest: tuple[int, ...]) -> None:
    """Raises UnsupportedError for an older ``version``."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < oldest:
        least = ".".join(map(str, oldest))
        raise UnsupportedError(library, version, "is older than what was tried", f"Install {least} or later.")
