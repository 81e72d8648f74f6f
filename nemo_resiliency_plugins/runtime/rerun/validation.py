"""Result validation of a session: looks at the results of each step, and runs it again where one is suspect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nemo_resiliency_plugins.config import RerunStateMachineConfig
from nemo_resiliency_plugins.contract import Reason
from nemo_resiliency_plugins.runtime.agreement import Ranks
from nemo_resiliency_plugins.runtime.events import EventLog
from nemo_resiliency_plugins.runtime.rerun import telling
from nemo_resiliency_plugins.runtime.rerun.ahead import BackwardCalls
from nemo_resiliency_plugins.runtime.rerun.before import Before
from nemo_resiliency_plugins.runtime.rerun.gradients import GradientCheck
from nemo_resiliency_plugins.runtime.rerun.looking import Looking
from nemo_resiliency_plugins.runtime.rerun.machine import Evidence, Outcome, judge
from nemo_resiliency_plugins.runtime.rerun.replay import Done, ForwardBackward, Passes, Trace, own_gradients
from nemo_resiliency_plugins.runtime.rerun.results import Checks, Finding, Kind, Run, Seen, equal, find, magnitude
from nemo_resiliency_plugins.runtime.rerun.suspects import Suspect, SuspectFile
from nemo_resiliency_plugins.runtime.rerun.window import LossWindow

if TYPE_CHECKING:
    import torch

Leave = Callable[[Reason, tuple[int, str]], NoReturn]
"""End all ranks because of a rank on a node."""
UNKNOWN = -1
"""The rank in a verdict where it could not be told."""


class Validation:
    """Creating it and :meth:`run` are collectives."""

    def __init__(
        self,
        config: RerunStateMachineConfig,
        models: Sequence[torch.nn.Module],
        ranks: Ranks,
        *,
        node: str,
        directory: Path | None,
        events: EventLog,
        problem_of_state: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._problem_of_state = problem_of_state
        self._config, self._ranks, self._events = config, ranks, events
        self._before, self._passes, self._looking = Before(models), Passes(BackwardCalls()), Looking()
        self._trace = Trace(models if config.check_for_nan_in_gradients else (), self._passes)
        checked = self._before.parameters if config.check_for_nan_in_gradients else ()
        self._gradients = GradientCheck(checked, ranks)
        self._window = LossWindow(
            size=config.spike_window, warmup=config.spike_warmup_steps, factor=config.spiky_loss_factor
        )
        self._counts: Counter[str] = Counter()
        device = str(self._before.parameters[0].device) if self._before.parameters else "cpu"
        self._places = [(str(place[0]), str(place[1])) for place in ranks.gather([node, device])]
        self._file = SuspectFile(directory, ranks)
        self._suspect = self._file.read()

    def run(self, step: int, forward_backward: ForwardBackward, micro_batches: Sequence[Any], leave: Leave) -> Any:
        """The loss of the step, which all ranks have agreed to go on with."""
        self._before.capture()
        self._trace.begin()
        done = self._passes.run(forward_backward, micro_batches)
        self._gradients.begin()
        losses, checks = self._looking.look(done.losses), self._checks(step)
        is_suspect, largest = self._agree(losses, checks)
        if not is_suspect and (self._suspect is None or self._suspect.step > step):
            self._window.add(step, largest)
            return done.loss
        run = self._gather(Seen(losses, self._gradients.count(), self._trace.sources()))
        investigation = Investigation(self, step, checks, run, done)
        if investigation.finding is not None:
            investigation.repeat(forward_backward, micro_batches)
        self._conclude(investigation, leave)
        return investigation.done.loss

    def repetition(self, forward_backward: ForwardBackward, micro_batches: Sequence[Any]) -> tuple[Run, Done]:
        """Collective. Run the step again, from the same state."""
        self._before.restore()
        with own_gradients(self._before.parameters, self._passes) as sources:
            done = self._passes.run(forward_backward, micro_batches)
        losses = self._looking.look(done.losses)
        return self._gather(Seen(losses, self._gradients.count(), sorted(sources))), done

    def _agree(self, losses: Sequence[float], checks: Checks) -> tuple[bool, float]:
        """Whether a rank has seen what may be suspect, and the largest magnitude of a loss.

        The ranks agree on the losses while their devices still run the backward pass, as a rule.
        """
        gradients, is_bad = self._gradients, checks.any_bad(losses)
        if not gradients.is_agreed:
            is_bad = is_bad or gradients.is_suspect()
        anywhere, largest = self._ranks.maximum([float(is_bad), magnitude([Seen(losses)])])
        return bool(anywhere) or (gradients.is_agreed and gradients.is_suspect()), largest

    def close(self) -> None:
        """Look at no gradients any more; no collective."""
        self._trace.close()

    def state_dict(self) -> dict[str, Any]:
        return {"window": self._window.state_dict(), "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """An empty state, of a checkpoint that was saved without validation, starts afresh."""
        self._window.load_state_dict(state.get("window", {}))
        self._counts = Counter(state.get("counts", {}))

    def _checks(self, step: int) -> Checks:
        config = self._config
        limit = self._window.limit(step) if config.check_for_spiky_loss else math.inf
        return Checks(config.check_for_nan_in_loss, config.check_for_nan_in_gradients, limit)

    def _gather(self, seen: Seen) -> Run:
        mine = {"losses": list(seen.losses), "gradients": seen.gradients, "sources": list(seen.sources)}
        return [Seen(**fields) for fields in self._ranks.gather(mine)]

    def suspect_of(self, step: int) -> Suspect | None:
        """What an earlier start has left about this very step."""
        return self._suspect if self._suspect is not None and self._suspect.step == step else None

    def _conclude(self, found: Investigation, leave: Leave) -> None:
        suspect = self.suspect_of(found.step)
        evidence = found.evidence(suspect, self._places, self._config.tolerance)
        outcome = judge(evidence, self._config.accept)
        # A state that is bad already is no fault of the device that computes with it.
        bad_state = self._ranks.first_problem(self._problem_of_state()) if outcome is Outcome.ELSEWHERE else None
        node, device = ("", "") if bad_state else self._place_of(found.finding, suspect)
        if outcome is not Outcome.GOOD:
            self._counts[outcome.value] += 1
            finding, again = found.finding, found.value_again
            case = telling.Case(found.step, outcome, evidence, finding, again, node, device, suspect, bad_state)
            if self._ranks.rank == 0:
                telling.tell(case, self._counts, self._events)
        if outcome.leaves:
            self._leave(outcome, found, node, leave)
        self._window.add(found.step, magnitude(found.last))
        if self._suspect is not None and self._suspect.step <= found.step:
            self._suspect = None
            self._file.clear()

    def _place_of(self, finding: Finding | None, suspect: Suspect | None) -> tuple[str, str]:
        if finding is not None:
            return ("", "") if finding.rank is None else self._places[finding.rank]
        return suspect.place if suspect is not None else ("", "")

    def _leave(self, outcome: Outcome, found: Investigation, node: str, leave: Leave) -> NoReturn:
        self._before.restore()
        finding = found.finding
        assert finding is not None  # nothing else ends a run
        rank, micro_batch = finding.rank, finding.micro_batch
        if outcome is Outcome.ELSEWHERE:
            values = [finding.value, *([] if found.value_again is None else [found.value_again])]
            self._file.write(Suspect(found.step, rank, micro_batch, finding.kind.value, values, self._places))
        reason = Reason.RERUN_ELSEWHERE if outcome is Outcome.ELSEWHERE else Reason.VALIDATION_FAILED
        leave(reason, (UNKNOWN if rank is None else rank, node))


class Investigation:
    """A step that is suspect now, or was in an earlier start; ``last`` and ``done`` are of its last run."""

    def __init__(self, validation: Validation, step: int, checks: Checks, run: Run, done: Done) -> None:
        self._validation, self.step, self._checks = validation, step, checks
        self._first = self.last = run
        self.done = done
        self._found = find(run, checks)
        self._again: Finding | None = None

    @property
    def finding(self) -> Finding | None:
        """What was wrong, and whose it was: the repetition may know better where gradients come from."""
        better = self._found is not None and self._found.rank is None and self._again is not None
        return self._again if better else self._found

    @property
    def value_again(self) -> float | None:
        """What the repetition gave in the place of the finding."""
        finding = self.finding
        if finding is None or self.last is self._first:
            return None
        if finding.kind is Kind.GRADIENTS or finding.rank is None or finding.micro_batch is None:
            return float(max(seen.gradients for seen in self.last))
        return float(self.last[finding.rank].losses[finding.micro_batch])

    def repeat(self, forward_backward: ForwardBackward, micro_batches: Sequence[Any]) -> None:
        """Collective."""
        self.last, self.done = self._validation.repetition(forward_backward, micro_batches)
        self._again = find(self.last, self._checks)

    def evidence(self, suspect: Suspect | None, places: Sequence[Sequence[str]], tolerance: float) -> Evidence:
        return Evidence(
            first=self._found.kind if self._found else None,
            again=self._again.kind if self._again else None,
            alike=self.last is not self._first and equal(self._first, self.last, tolerance),
            place=suspect.seen_from(places, self.finding.rank if self.finding else None) if suspect else None,
        )
