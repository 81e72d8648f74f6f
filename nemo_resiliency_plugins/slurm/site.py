"""What a site's settings mean for requeues and preemption, as ``scontrol`` shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from nemo_resiliency_plugins.slurm.durations import seconds

Finding = tuple[str, str, str, str]
"""Name, value, a problem or "", and its remedy or "": nothing is said of what is as it should be."""

TRIED = "22.05"
LEAST_GRACE_S = 60.0
LEAST_KILL_WAIT_S = 30.0


def fields_of_config(text: str) -> dict[str, str]:
    """``Name = value`` lines."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def partitions(text: str) -> list[dict[str, str]]:
    """``scontrol show partition --oneliner``: the fields of each."""
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines() if "PartitionName=" in line]


def of_config(config: Mapping[str, str]) -> Iterator[Finding]:
    """What holds for the whole cluster."""
    version = config.get("SLURM_VERSION", "unknown")
    yield "Slurm", version, "", f"tried with {TRIED}" if not version.startswith(TRIED) else ""
    yield _requeue(config.get("JobRequeue", "unknown"))
    kill_wait = _in_seconds(config.get("KillWait", ""))
    problem = "ranks have less time than that after SIGTERM" if (kill_wait or 0) < LEAST_KILL_WAIT_S else ""
    remedy = "Keep PreemptionPlugin.preempt_time well above it: a save must end before SIGKILL" if problem else ""
    yield "KillWait", config.get("KillWait", "unknown"), problem and f"under {LEAST_KILL_WAIT_S:g} s: {problem}", remedy
    yield _expiry(config.get("AuthInfo", ""))


def of_partition(fields: Mapping[str, str], config: Mapping[str, str]) -> Iterator[Finding]:
    """What holds for one partition."""
    name = fields.get("PartitionName", "?")
    mode = fields.get("PreemptMode", "OFF").split(",")[0]
    grace = _in_seconds(fields.get("GraceTime", "0")) or 0.0
    if mode in ("CANCEL", "REQUEUE") and config.get("PreemptType", "none") != "preempt/none":
        problem = f"a preempted job is killed after {grace:g} s" if grace < LEAST_GRACE_S else ""
        remedy = "Ask the site for GraceTime of a checkpoint's time and more" if problem else ""
        yield f"{name}: GraceTime", fields.get("GraceTime", "0"), problem, remedy
    note = "a preempted job is not brought back by Slurm: with PreemptionPlugin it submits itself again"
    yield f"{name}: PreemptMode", mode, "", note if mode == "CANCEL" else ""
    suspends = mode in ("SUSPEND", "GANG")
    if suspends:
        remedy = "Use another partition, or raise rank_heartbeat_timeout above the longest suspension"
        yield f"{name}: PreemptMode {mode}", mode, "suspended ranks look like hung ones", remedy
    limit = seconds(fields.get("MaxTime", "UNLIMITED"))
    short = limit is not None and limit < 600
    remedy = "Save often, and keep PreemptionPlugin.preempt_time short" if short else ""
    yield f"{name}: MaxTime", fields.get("MaxTime", "?"), "shorter than ten minutes" if short else "", remedy
    state = fields.get("State", "UP")
    remedy = "Choose a partition that is up" if state != "UP" else ""
    yield f"{name}: State", state, "" if state == "UP" else "no job starts there", remedy


def _requeue(value: str) -> Finding:
    note = "jobs are not requeued by default; the plugins ask for it" if value == "0" else ""
    return "JobRequeue", value, "", note


def _expiry(auth: str) -> Finding:
    """A requeued job cannot start before its old credential has expired."""
    given = re.search(r"cred_expire=(\d+)", auth)
    return "cred_expire", f"{given[1] if given else 120} s", "", "a requeue costs at least this"


def _in_seconds(text: str) -> float | None:
    match = re.match(r"\d+", text)
    return float(match[0]) if match else None
