"""Reports in words, in the form that NVRx's users know, and as events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.stragglers.scores import (
    GPU_INDIVIDUAL,
    GPU_RELATIVE,
    HOST_INDIVIDUAL,
    HOST_RELATIVE,
    Report,
    Scores,
    Straggler,
)

TITLES = {
    GPU_RELATIVE: "GPU relative performance",
    GPU_INDIVIDUAL: "GPU individual performance",
    HOST_RELATIVE: "Host relative performance",
    HOST_INDIVIDUAL: "Host individual performance",
}


def in_words(report: Report, shown: int) -> str:
    """The report of all kinds, with the ``shown`` worst and best ranks of each."""
    return "\n".join(text for kind, title in TITLES.items() for text in _of_kind(report, kind, title, shown))


def _of_kind(report: Report, kind: str, title: str, shown: int) -> Iterator[str]:
    if kind in report.absent:
        yield f"{title}: not available, {report.absent[kind]}"
    if not shown or kind not in report.scores:
        return
    scores = report.scores[kind]
    ranked = sorted(scores, key=lambda rank: (scores[rank], rank))
    yield f"{title}:"
    yield from _ranks(report, scores, "Worst", ranked[:shown])
    yield from _ranks(report, scores, "Best", ranked[::-1][:shown])


def _ranks(report: Report, scores: Scores, title: str, ranks: Sequence[int]) -> Iterator[str]:
    yield f"  {title} performing {len(ranks)}/{len(scores)} ranks:"
    for rank in ranks:
        yield f"    Rank={rank} Node={report.nodes[rank]} Score={scores[rank]:.2f}"


def name(straggler: Straggler) -> str:
    scores = ", ".join(f"{TITLES[kind]} {score:.2f}" for kind, score in straggler.scores.items())
    phase = f", slowest in {straggler.phase}" if straggler.phase else ""
    return f"rank {straggler.rank} on {straggler.node} ({scores}{phase})"


def tell(
    report: Report, stragglers: Sequence[Straggler], events: EventLog, *, step: int, seconds: float, shown: int | None
) -> None:
    """On rank 0. ``shown``: scores to write to the log at each end; None for no report there, only warnings."""
    events.emit(
        "straggler_report",
        step=step,
        seconds=seconds,
        scores=report.scores,
        absent=report.absent,
        stragglers=[each.rank for each in stragglers],
    )
    if shown is not None:
        logger().info(line(0, f"straggler report after {step} steps\n{in_words(report, shown)}"))
    for each in stragglers:
        events.emit(
            "straggler", step=step, slow_rank=each.rank, node=each.node, scores=dict(each.scores), phase=each.phase
        )
    if stragglers:
        logger().warning(line(0, f"stragglers: {'; '.join(map(name, stragglers))}"))
