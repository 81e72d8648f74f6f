"""Medians, a table and ``bench.json`` of what a benchmark has found."""

from __future__ import annotations

import json
import os
import platform
import statistics
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nemo_resiliency_plugins.compat.nvrx import installed_version

console = Console()


def repeat(label: str, times: int, once: Callable[[Path], Any]) -> list[Any]:
    """``once``, each time in a fresh directory."""
    found = []
    for _ in track(range(times), description=label, console=console, transient=True):
        with tempfile.TemporaryDirectory() as directory:
            found.append(once(Path(directory)))
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
