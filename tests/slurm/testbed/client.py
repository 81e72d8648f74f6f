"""Slurm's commands against one cluster, with their output parsed."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from tests.harness import wait_for
from tests.slurm.testbed.layout import Layout

FINAL = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
SACCT_FIELDS = "JobID,JobName,Partition,State,ExitCode,NodeList,Submit,Start,End,ElapsedRaw"
COMMAND_DEADLINE_S = 60
_KEY = re.compile(r"(?:^| )([A-Z][\w/:]*)=")

Fields = dict[str, str]
Value = TypeVar("Value")


class SlurmError(Exception):
    """A command of Slurm failed; the message holds what it said."""


def parse_fields(line: str) -> Fields:
    """A line of ``scontrol show -o``: values may hold spaces."""
    found = list(_KEY.finditer(line))
    ends = [match.start() for match in found[1:]] + [len(line)]
    return {match[1]: line[match.end() : end].strip() for match, end in zip(found, ends, strict=True)}


class Client:
    """What a user or an operator can do with the cluster.

    A job id is what Slurm prints: ``12``, or ``12_3`` for a task of an array.
    """

    def __init__(self, layout: Layout, env: Mapping[str, str]) -> None:
        self.layout = layout
        self.env = dict(env)
        """The environment in which Slurm's commands find the cluster."""

    def run(self, *command: str, stdin: str = "", env: Mapping[str, str] | None = None) -> str:
        """The output of a command on the cluster's submit host."""
        done = subprocess.run(
            command,
            input=stdin,
            env={**self.env, **(env or {})},
            cwd=self.layout.jobs,
            capture_output=True,
            text=True,
            timeout=COMMAND_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise SlurmError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def sbatch(self, script: str | Path, *options: str, env: Mapping[str, str] | None = None) -> str:
        """Submit a script, given as its text or its path. Output goes to the testbed's ``jobs`` by default."""
        path = [str(script)] if isinstance(script, Path) else []
        text = "" if isinstance(script, Path) else _with_interpreter(script)
        return self.run("sbatch", "--parsable", *options, *path, stdin=text, env=env).strip().partition(";")[0]

    def jobs(self, job_id: str) -> list[Fields]:
        """The job; for an array, each task that Slurm has split off and the rest."""
        output = self.run("scontrol", "show", "job", "--oneliner", job_id)
        return [parse_fields(line) for line in output.splitlines() if line.startswith("JobId=")]

    def job(self, job_id: str) -> Fields:
        (fields,) = self.jobs(job_id)
        return fields

    def state(self, job_id: str) -> str:
        return self.job(job_id)["JobState"]

    def output(self, job_id: str) -> str:
        """What the batch script has written to its standard output so far, over all attempts."""
        path = Path(self.job(job_id)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    def sacct(self, job_id: str, *, steps: bool = False) -> list[Fields]:
        """One row an attempt, oldest first; with ``steps`` the rows of the job's steps as well.

        slurmctld sends the starts of jobs every 5 s; until then NodeList may show the first node alone.
        """
        options = [f"--jobs={job_id}", "--duplicates", "--parsable2", f"--format={SACCT_FIELDS}"]
        header, *rows = self.run("sacct", *options, *([] if steps else ["--allocations"])).splitlines()
        return [dict(zip(header.split("|"), row.split("|"), strict=True)) for row in rows]

    def wait_for_state(self, job_id: str, states: str | set[str] | frozenset[str], deadline_s: float = 60.0) -> Fields:
        """The job's fields, once it is in one of the states; an error at once if it has ended in another."""
        wanted = {states} if isinstance(states, str) else states

        def reached() -> Fields | None:
            fields = self.job(job_id)
            if fields["JobState"] in wanted:
                return fields
            assert fields["JobState"] not in FINAL, self.describe(job_id)
            return None

        return self._wait(job_id, reached, deadline_s, f"job {job_id} in {' or '.join(sorted(wanted))}")

    def wait_for_restart(self, job_id: str, count: int, deadline_s: float = 60.0) -> Fields:
        """The job's fields, once it runs after ``count`` requeues."""

        def restarted() -> Fields | None:
            fields = self.job(job_id)
            assert fields["JobState"] not in FINAL, self.describe(job_id)
            return fields if fields["JobState"] == "RUNNING" and int(fields["Restarts"]) >= count else None

        return self._wait(job_id, restarted, deadline_s, f"restart {count} of job {job_id}")

    def wait_for_end(self, job_id: str, deadline_s: float = 60.0) -> list[Fields]:
        """The attempts in the accounting, once the job has ended for good and the accounting knows."""
        state = self.wait_for_state(job_id, FINAL, deadline_s)["JobState"]

        def accounted() -> list[Fields] | None:
            rows = self.sacct(job_id)
            # "CANCELLED by 0"
            return rows if rows and rows[-1]["State"].startswith(state) and rows[-1]["End"] != "Unknown" else None

        return self._wait(job_id, accounted, 30.0, f"job {job_id} as {state} in sacct")

    def _wait(self, job_id: str, condition: Callable[[], Value | None], deadline_s: float, what: str) -> Value:
        try:
            found = wait_for(condition, deadline_s=deadline_s, what=what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe(job_id)}") from None
        assert found is not None
        return found

    def describe(self, job_id: str) -> str:
        """Everything that helps to see why a job is not where it should be."""
        jobs = [" ".join(f"{name}={value}" for name, value in fields.items()) for fields in self.jobs(job_id)]
        log = (self.layout.logs / "slurmctld.log").read_text(errors="replace").splitlines()[-20:]
        return "\n".join([*jobs, *map(str, self.sacct(job_id)), self.output(job_id)[-3000:], *log])

    def cancel(self, job_id: str, *options: str) -> None:
        self.run("scancel", *options, job_id)

    def requeue(self, job_id: str) -> None:
        self.run("scontrol", "requeue", job_id)

    def update(self, job_id: str, **fields: str) -> None:
        self.run("scontrol", "update", f"JobId={job_id}", *(f"{name}={value}" for name, value in fields.items()))

    def set_end_time(self, job_id: str, seconds_from_now: float) -> None:
        """Move the time limit of a running job.

        slurmctld looks at time limits every 30 s and nothing changes that: with ``--signal=TERM@N`` the signal comes
        at the first look with less than N + 30 s left, the kill at the first look after the end.
        """
        end = datetime.datetime.now() + datetime.timedelta(seconds=seconds_from_now)
        self.update(job_id, EndTime=end.isoformat(timespec="seconds"))

    def nodes(self) -> dict[str, str]:
        """State by node: ``IDLE``, ``MIXED``, ``DOWN``, ..., with ``+`` and ``*`` flags as Slurm writes them."""
        lines = self.run("scontrol", "show", "nodes", "--oneliner").splitlines()
        return {fields["NodeName"]: fields["State"] for fields in map(parse_fields, lines)}


def _with_interpreter(text: str) -> str:
    return text if text.startswith("#!") else f"#!/bin/bash\n{text}"
