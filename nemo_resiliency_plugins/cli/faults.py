"""``nemo-resiliency faults``: inject a fault into a running job of one's own, to see what becomes of it."""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from nemo_resiliency_plugins.cli import victims
from nemo_resiliency_plugins.config.fault_request import FaultRequest, request_path
from nemo_resiliency_plugins.contract import write_atomically
from nemo_resiliency_plugins.errors import ConfigError, NotWorkingError
from nemo_resiliency_plugins.report.reading import Event, event_files, events_of, find_job

Tell = Callable[[], None]


class Kind(str, enum.Enum):
    """``stop``, ``kill`` and ``preempt`` come from outside, the others from the rank itself."""

    STOP = "stop"
    KILL = "kill"
    EXCEPTION = "exception"
    NAN = "nan"
    SLOW = "slow"
    PREEMPT = "preempt"


UNHEEDED = "nothing takes the signal for a notice: the ranks die of it, unsaved. PreemptionPlugin makes them save first"
UNSEEN = "nobody looks at the results of steps: the NaN stays. RerunStateMachinePlugin and session.checked() find it"
SIGNALS = {Kind.STOP: "STOP", Kind.KILL: "KILL"}


def faults(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="the job's directory, or one above it")],
    kind: Annotated[Kind, typer.Argument(help="what is to happen", show_default=False)],
    rank: Annotated[int | None, typer.Option(min=0, help="the rank that is hit; preempt needs none")] = None,
    seconds: Annotated[float | None, typer.Option(help="slow: how much longer each step takes; 1 by default")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="slow: for so many steps; 20 by default")] = None,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait until the rank has taken it")] = 60.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Inject a fault into a running job of your own: its process is stopped or killed, or its script disturbed.

    Example: nemo-resiliency faults experiments/train/train_123 kill --rank 3
    """
    job = find_job(Path(directory).expanduser())
    if rank is None and kind is not Kind.PREEMPT:
        raise ConfigError("--rank", None, f"{kind.value} is for one rank", "Give --rank 0, say.")
    request = _request(kind, rank, {"seconds": seconds, "steps": steps})
    victim = victims.find(job, 0 if rank is None else rank)
    if unnoticed := _unnoticed(kind, victim):
        typer.echo(f"warning: as far as can be seen, {unnoticed}", err=True)
    what = f"{kind.value} on {victim}" if kind is not Kind.PREEMPT else f"preempt the job of {victim}"
    if not yes:
        typer.confirm(f"{what}?", abort=True)
    began = time.time()
    if request is not None:
        write_atomically(request_path(job, victim.rank), request.encode())
        _await(job, victim, began, wait)
    elif kind in SIGNALS:
        victims.signal(victim, SIGNALS[kind])
        _note(job, victim, kind, began)
    else:
        victims.announce_end(victim)
        _note(job, victim, kind, began)
    typer.echo(f"done: {what}; see: nemo-resiliency status {directory} --watch")


def _request(kind: Kind, rank: int | None, options: dict[str, float | int | None]) -> FaultRequest | None:
    """What the rank is asked to do to itself; None for what comes from outside.

    Raises:
        ConfigError: an option that the kind does not have, or a value that breaks its rule.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given and kind is not Kind.SLOW:
        name, value = next(iter(given.items()))
        raise ConfigError(f"--{name}", value, f"does nothing for {kind.value}", "Leave it out: it is for slow.")
    if kind.value not in FaultRequest.KINDS:
        return None
    assert rank is not None  # only preempt goes without one
    try:
        return FaultRequest(kind.value, rank, **given)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"--{error.field.rpartition('.')[2]}", error.value, error.rule, error.remedy) from None


def _unnoticed(kind: Kind, victim: victims.Victim) -> str | None:
    """Why nothing of this package takes the fault up; None where something may."""
    if kind is Kind.PREEMPT and not victims.heeds_announcement(victim):
        return UNHEEDED
    return UNSEEN if kind is Kind.NAN and victims.ignores_results(victim) else None


def _note(job: Path, victim: victims.Victim, kind: Kind, at: float) -> None:
    """An event, in a file of which this is the only writer: the rank itself can tell nothing any more."""
    place = {"rank": victim.rank, "attempt": victim.attempt, "cycle": victim.cycle, "node": victim.node}
    event = {"event": "fault_injected", "time": at, **place, "kind": kind.value, "step": None, "requested": True}
    with (job / "events" / f"{victim.attempt}-requests.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def _await(job: Path, victim: victims.Victim, since: float, limit_s: float) -> None:
    """Raises NotWorkingError where the rank has not taken the request, which is withdrawn then."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        for event in _answers(job, victim):
            if event["time"] >= since and event["event"] == "fault_injected":
                return
            if event["time"] >= since and event["event"] == "fault_refused":
                raise NotWorkingError(f"{victim} cannot have it: {event['reason']}")
        time.sleep(0.2)
    request_path(job, victim.rank).unlink(missing_ok=True)
    raise NotWorkingError(f"{victim} has not taken it within {limit_s:g} s: is it in the loop of a session?")


def _answers(job: Path, victim: victims.Victim) -> list[Event]:
    files = [file for file in event_files(job) if file.rank == victim.rank and file.attempt == victim.attempt]
    return [event for file in files for event in events_of(file) if event["event"].startswith("fault_")]
