"""``nemo-resiliency demo``: a real training run survives a kill and a hang, and ends with the same weights."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from nemo_resiliency_plugins.cli.console import console as make_console
from nemo_resiliency_plugins.cli.console import rows, table
from nemo_resiliency_plugins.cli.places import written_to
from nemo_resiliency_plugins.cli.recovery import Event, Recovery, newest_step, recoveries
from nemo_resiliency_plugins.cli.versions import RUNTIME, installed
from nemo_resiliency_plugins.config import FaultScript
from nemo_resiliency_plugins.contract import read_events
from nemo_resiliency_plugins.errors import NotWorkingError

STEPS = 60
STEP_TIMEOUT_S = 5.0
DEADLINE_S = 150.0
RECIPE = "nemo_resiliency_plugins.recipes.small_gpt"
NEEDED = ("torch", "nvidia-resiliency-ext")

console = make_console()


class Training:
    """One submission of the recipe, in a process and a directory of its own."""

    def __init__(self, directory: Path, *, ranks: int, faults: FaultScript) -> None:
        self.directory = directory
        self.faults = faults
        directory.mkdir(parents=True)
        options = ["--ranks", ranks, "--steps", STEPS, "--step-timeout", STEP_TIMEOUT_S, "--faults", faults]
        self._command = [sys.executable, "-m", RECIPE, str(directory), *map(str, options)]

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """The process while it runs; whatever is left of it afterwards is ended."""
        home = {"NEMORUN_HOME": str(self.directory / "nemorun")}
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                self._command, env={**os.environ, **home}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield process
        finally:
            end_with_children(process)

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    def events(self) -> list[Event]:
        return [event for path in self.directory.glob("nemorun/experiments/*/*/*/nrp") for event in read_events(path)]

    def weights(self) -> str | None:
        path = self.directory / "weights.sha256"
        return path.read_text().strip() if path.exists() else None

    def finished(self) -> bool:
        return any(event["event"] == "finished" for event in self.events())


def demo(
    ranks: Annotated[int, typer.Option(min=2, help="processes to train with")] = 2,
    directory: Annotated[Path | None, typer.Option(help="keep logs, events and checkpoints here")] = None,
) -> None:
    """Train a small GPT twice on this machine: undisturbed, and with one rank killed and one stopped.

    Example: nemo-resiliency demo --ranks 4
    """
    refuse_without(NEEDED)
    faults = FaultScript().kill(rank=1, step=23).hang(rank=0, step=42)
    with contextlib.ExitStack() as stack:
        root = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nemo-resiliency-")))
        with written_to("--directory", root, "Name a directory of your own that is new, or holds no demo yet."):
            undisturbed = Training(root / "undisturbed", ranks=ranks, faults=FaultScript())
            disturbed = Training(root / "disturbed", ranks=ranks, faults=faults)
        with _progress() as progress:
            codes = [_follow(training, progress) for training in (undisturbed, disturbed)]
        holds = _report(undisturbed, disturbed) and codes == [0, 0]
        if not holds:
            console.print(disturbed.log.read_text()[-4000:], markup=False, highlight=False)
    raise typer.Exit(0 if holds else 1)


def refuse_without(packages: Iterable[str]) -> None:
    """Raises NotWorkingError where one of ``packages`` is not installed."""
    missing = [name for name in packages if installed(name) is None]
    if missing:
        raise NotWorkingError(f"the demo trains here, without {' and '.join(missing)} it cannot: {RUNTIME}")


def end_with_children(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and all that it started."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _follow(training: Training, progress: Progress) -> int:
    """Show how far ``training`` is until it ends; returns its exit code."""
    label = f"{training.directory.name} run"
    bar = progress.add_task(label, total=STEPS)
    deadline = time.monotonic() + DEADLINE_S
    with training.running() as process:
        while process.poll() is None and time.monotonic() < deadline:
            _show(training, progress, bar, label)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.5)
        _show(training, progress, bar, label)
    return process.returncode


def _show(training: Training, progress: Progress, bar: Any, label: str) -> None:
    events = training.events()
    faults = recoveries(events)
    last = faults[-1] if faults else None
    what = f": rank {last.rank} {last.kind}, recovering" if last and last.running_s is None else ""
    progress.update(bar, completed=newest_step(events), description=f"{label}{what}")


def _report(undisturbed: Training, disturbed: Training) -> bool:
    """Print the table and the verdict; whether all that was promised holds."""
    seen = recoveries(disturbed.events())
    console.print(_table(seen))
    equal = undisturbed.weights() is not None and undisturbed.weights() == disturbed.weights()
    console.print(f"final weights identical to the undisturbed run: {'yes' if equal else 'no'}")
    recovered = len(seen) == len(disturbed.faults.faults) and all(fault.running_s is not None for fault in seen)
    return equal and recovered and undisturbed.finished() and disturbed.finished()


def _table(seen: list[Recovery]) -> Table:
    made = table("fault", "rank", "at step", "noticed after", "running again after", "steps done again")
    for fault in seen:
        times = (_seconds(fault.noticed_s), _seconds(fault.running_s))
        rows(made, fault.kind, fault.rank, fault.step, *times, fault.steps_again)
    return made


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"
