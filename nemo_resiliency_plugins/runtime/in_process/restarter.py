"""Runs a train function life after life, and knows when to leave it to the launcher."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nemo_resiliency_plugins.compat import gloo, spare_ranks
from nemo_resiliency_plugins.compat import inprocess as nvrx
from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError
from nemo_resiliency_plugins.runtime.events import EventLog, emit_failure
from nemo_resiliency_plugins.runtime.identity import Identity
from nemo_resiliency_plugins.runtime.in_process import life, meeting, server
from nemo_resiliency_plugins.runtime.in_process.faults import Fault, History, decode
from nemo_resiliency_plugins.runtime.in_process.standby import Standby
from nemo_resiliency_plugins.runtime.log import line, logger
from nemo_resiliency_plugins.runtime.loop import is_success
from nemo_resiliency_plugins.runtime.preemption import early

HAND_OVER = "hand_over"
LEAVE_S = 0.5
"""Seconds for a rank to leave the train function by itself after a fault elsewhere."""
_calls = itertools.count()


class HandedOver(ResiliencyError):
    """In-process restart has come to its end; the launcher is to take over."""


class RankLeaves(ResiliencyError):
    """A life does not begin, because one of its ranks leaves."""


class Restarter(nvrx.Hooks):
    """One call of a wrapped function on one rank."""

    def __init__(self, train_fn: Callable[..., Any], config: InProcessRestartConfig) -> None:
        self._train, self._config = train_fn, config
        self._identity = Identity.from_env()
        attempt = self._identity.attempt
        self._events = EventLog(self._identity.directory, attempt, self._identity.rank)
        self._prefix = f"nrp/{attempt.name}/{attempt.cycle}/{next(_calls)}"
        self._first_address = os.environ["MASTER_ADDR"]
        self._history = History()
        self._lost: dict[int, set[int]] = {}
        self._life: life.Life | None = None
        self._error: BaseException | None = None
        self._store: Any = None
        self._faults: Counter[int] = Counter()
        self._standby = Standby()

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the life that ends well; None on a spare.

        Raises:
            HandedOver: there is none, and this rank has no error of its own to raise.
        """
        wrapped = nvrx.wrap(
            self._live,
            times={name: getattr(self._config, name) for name in nvrx.TIMES},
            plan=spare_ranks.Plan(
                active=self._config.active_world_size,
                node=self._identity.node if self._config.granularity == "node" else None,
            ),
            hooks=self,
            prefix=self._prefix,
            log_file=self._log_file(),
        )
        if self._identity.rank == 0:
            server.start()
        gc.collect()
        gc.freeze()  # what is there now stays; the collections between two lives are the faster for it
        try:
            with meeting.kept_variables():
                result = wrapped(None, args, kwargs)
        except (spare_ranks.TooFewRanks, nvrx.names().hand_over) as end:
            raise self._last_error(str(end)) from None
        except spare_ranks.Discarded as end:
            self._say("inprocess_discarded", f"leaves, others of its node were lost: {end}")
            raise SystemExit(0) from None
        except spare_ranks.UnevenNodes as error:
            rule = f"needs nodes with equally many ranks, of which {error.active} train as whole nodes"
            remedy = 'Set granularity="rank", or make active_world_size a multiple of the ranks of a node.'
            raise ConfigError("InProcessRestartConfig.granularity", error.ranks, rule, remedy) from None
        finally:
            gc.unfreeze()
            self._standby.end()
            self._events.close()
        if isinstance(result, _Exit):
            raise SystemExit(result.code)
        return result

    def begins(self, turn: nvrx.Turn, store: Any) -> None:
        self._store = store
        if turn.iteration:
            self._look_back(turn, store)
        reason = self._reason_to_end(turn, store)
        if reason is not None:
            self._say("inprocess_handed_over", f"in-process restart ends, the launcher takes over: {reason}")
            raise nvrx.names().hand_over(reason)
        self._leave_after_too_many_faults(turn)
        self._error = None
        if turn.is_active:
            self._standby.end()
            limit_s = self._config.barrier_timeout
            node = self._identity.node
            meeting.meet(turn, store, node=node, first_address=self._first_address, limit_s=limit_s)
        else:
            self._standby.begin()
        os.environ[meeting.CYCLE] = str(self._identity.attempt.cycle + turn.iteration)
        fields = {"iteration": turn.iteration, "active_rank": turn.rank, "world_size": turn.world_size}
        self._events.emit("life_began", meeting=os.environ["MASTER_PORT"], **fields)

    def ends(self, turn: nvrx.Turn, store: Any) -> None:
        ended, self._life = self._life, None
        if ended is not None:
            ended.clean(nvrx.destroy_process_groups)
        if self._config.empty_cuda_cache:
            life.empty_cuda_cache()
        self._events.emit("life_ended", iteration=turn.iteration)

    def aborts(self) -> None:
        # Before the groups are destroyed: a gloo group ends with its threads, and they wait in its collectives.
        # The rank that failed first has closed its connections, which frees most others; their writers may go on.
        running = self._life
        if running is not None and not running.over.wait(LEAVE_S):
            gloo.shut_down_connections()
            gloo.shut_down_store(int(os.environ["MASTER_PORT"]))

    def lost(self, iteration: int, ranks: set[int]) -> None:
        self._lost[iteration] = ranks
        self._say("ranks_lost", f"ranks {sorted(ranks)} are lost", iteration=iteration, ranks=sorted(ranks))

    def _live(self, call: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = inspect.signature(self._train).bind_partial(*args, **kwargs)
        bound.arguments.update(dict.fromkeys(nvrx.wanted_by(self._train), call))
        with life.lived(self._config.soft_timeout / 2, self._config.hard_timeout) as self._life:
            try:
                result = self._train(*bound.args, **bound.kwargs)
                self._life.over.set()
                return result
            except BaseException as error:
                if is_success(error):
                    return _Exit(error.code)  # type: ignore[attr-defined]
                self._failed(error, call.iteration)
                raise

    def _failed(self, error: BaseException, iteration: int) -> None:
        """Note why, unless another rank was first, and let go of what makes others wait for this one."""
        assert self._life is not None
        self._life.over.set()
        first = self._store.add(f"failures/{iteration}", 1) == 1
        if isinstance(error, Exception):
            fault = Fault.of(error, self._identity.rank, self._life.step, self._life.resumed)
            if first:
                self._error = error
                self._store.append(f"faults/{iteration}", fault.encode())
                emit_failure(self._events, "life_failed", error, iteration=iteration, step=fault.step)
                logger().error(line(self._identity.rank, f"{fault}"))
        if isinstance(error, (ConfigError, SystemExit, KeyboardInterrupt)):
            self._store.set(HAND_OVER, f"{error!r} on rank {self._identity.rank}")
        life.forget_frames(error)
        gloo.shut_down_connections()
        nvrx.destroy_process_groups()
        gc.collect()

    def _look_back(self, turn: nvrx.Turn, store: Any) -> None:
        """Learn from the notes what has ended the previous life."""
        previous = turn.iteration - 1
        key = f"faults/{previous}"
        store.append(key, "")
        faults = decode(store.get(key).decode())
        self._history.add(faults, lost=previous in self._lost)
        self._faults.update(fault.rank for fault in self._history.lives[-1])

    def _reason_to_end(self, turn: nvrx.Turn, store: Any) -> str | None:
        if reason := self._handed_over():
            return reason
        if repeated := self._history.repeated():
            return f"the same error has returned: {repeated}"
        if self._config.max_iterations is not None and turn.iteration >= self._config.max_iterations:
            return f"max_iterations={self._config.max_iterations} are used up"
        if turn.iteration and early.is_doomed(self._identity):
            return "the end of this attempt has been announced"
        return None

    def _leave_after_too_many_faults(self, turn: nvrx.Turn) -> None:
        """The rank leaves, and the others do not begin a life with it."""
        most = self._config.max_rank_faults
        for rank in [rank for rank, count in self._faults.items() if most is not None and count > most]:
            del self._faults[rank]
            text = f"rank {rank} leaves after more than max_rank_faults={most} faults"
            if rank == turn.first_rank:
                self._say("inprocess_handed_over", text)
                raise nvrx.names().hand_over(text)
            raise RankLeaves(text)

    def _handed_over(self) -> str | None:
        """Why a rank has ended the restarts for all."""
        return str(self._store.get(HAND_OVER).decode()) if self._store.check([HAND_OVER]) else None

    def _last_error(self, reason: str) -> BaseException:
        """What the launcher is given: this rank's error, if it came first."""
        error, self._error = self._error, None
        reason = self._handed_over() or reason
        self._say("inprocess_ended", f"in-process restart has come to its end: {reason}")
        return error if error is not None else HandedOver(reason)

    def _say(self, event: str, text: str, **fields: Any) -> None:
        self._events.emit(event, message=text, **fields)
        logger().warning(line(self._identity.rank, text))

    def _log_file(self) -> str | None:
        directory = self._config.monitor_process_logdir
        if directory is None:
            return None
        Path(directory).mkdir(parents=True, exist_ok=True)
        attempt = self._identity.attempt
        return f"{directory}/monitor-{attempt.name}-{attempt.cycle}-rank{{rank}}.log"


class _Exit:
    """The function has ended with ``sys.exit(0)``; the process does so when all ranks are done."""

    def __init__(self, code: Any) -> None:
        self.code = code
