"""Medians, a table and ``bench.json`` of what a benchmark has found."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nemo_resiliency_plugins.compat.nvrx import installed_version
from tests.harness import clean_env

console = Console()
RUNS, ENOUGH, LONG_S = 5, 3, 60.0


def arguments(doc: str | None, variants: Sequence[str] = ()) -> argparse.Namespace:
    """Of a benchmark: how often it repeats, where it writes, and of which variants, where some can be left out.

    What a job or a launcher has set is forgotten.
    """
    parser = argparse.ArgumentParser(description=doc)
    if variants:
        parser.add_argument("--variants", nargs="+", choices=variants, default=variants)
    parser.add_argument("--repeats", type=_count, default=RUNS)
    parser.add_argument("--output", type=Path, default=Path("build/bench.json"))
    options = parser.parse_args()
    os.environ.update(clean_env({}))
    return options


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def repeat(label: str, times: int, once: Callable[[Path], Any]) -> list[Any]:
    """``once``, each time in a fresh directory; three times are enough where one takes more than a minute."""
    found: list[Any] = []
    began = time.monotonic()
    for done in track(range(times), description=label, console=console, transient=True):
        if done >= ENOUGH and time.monotonic() - began > done * LONG_S:
            break
        with tempfile.TemporaryDirectory() as directory:
            found.append(once(Path(directory)))
    console.print(f"{label}: {len(found)} times, {(time.monotonic() - began) / len(found):.0f} s each")
    return found


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {key: round(statistics.median(values), 3) for key, values in found.items()}


def show(found: dict[str, list[float]], parts: dict[str, dict[str, float]], ratios: dict[str, float]) -> None:
    table = Table("key", "median", "lowest", "highest", "runs")
    for key, values in found.items():
        table.add_row(
            key, f"{statistics.median(values):.2f}", f"{min(values):.2f}", f"{max(values):.2f}", str(len(values))
        )
    console.print(table)
    for key, times in parts.items():
        console.print(f"{key}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items()))
    for name, ratio in ratios.items():
        console.print(f"{name} = {ratio:.2f}")


def save(
    output: Path, found: dict[str, list[float]], parts: dict[str, dict[str, float]], ratios: dict[str, float]
) -> None:
    """Add to ``output`` what this benchmark has found; other keys stay."""
    before = json.loads(output.read_text()) if output.exists() else {}
    content = {
        **before,
        **medians(found),
        **ratios,
        "runs": {**before.get("runs", {}), **{key: [round(value, 3) for value in each] for key, each in found.items()}},
        "parts": {**before.get("parts", {}), **parts},
        "machine": {"date": date.today().isoformat(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"torch": torch.__version__, "nvidia-resiliency-ext": installed_version()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=1) + "\n")
    console.print(f"written to {output}")
