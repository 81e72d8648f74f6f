"""A loop in the order of Megatron-Bridge's, on its own fault tolerance, signal handler and callbacks (the real ones).

Arguments are overrides, as its scripts take them: ``train.train_iters=20 checkpoint.save=DIRECTORY``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import tiny
import torch
import torch.distributed as dist
from megatron.bridge.training import callbacks as bridge_callbacks
from megatron.bridge.training import fault_tolerance
from megatron.bridge.training.utils.sig_utils import DistributedSignalHandler

from nemo_resiliency_plugins.integrations.megatron_bridge import ResiliencyCallback

STEP_S = 0.05


@dataclasses.dataclass
class Train:
    train_iters: int = 20
    exit_interval: int = 0
    exit_duration_in_mins: float = 0
    exit_signal_handler: bool = False
    exit_signal_handler_for_dataloader: bool = False
    exit_signal: int = signal.SIGTERM


@dataclasses.dataclass
class Checkpoint:
    save: str = ""
    save_interval: int = 0
    async_save: bool = False


@dataclasses.dataclass
class Ft:
    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False


def configuration(arguments: list[str]) -> argparse.Namespace:
    sections: dict[str, Any] = {"train": Train(), "checkpoint": Checkpoint(), "ft": Ft()}
    for argument in arguments:
        key, value = argument.split("=", 1)
        section, name = key.split(".")
        kind = type(getattr(sections[section], name))
        setattr(sections[section], name, value.lower() == "true" if kind is bool else kind(value))
    return argparse.Namespace(**sections)


def new_state(cfg: argparse.Namespace) -> argparse.Namespace:
    """The attributes of Megatron-Bridge's GlobalState that its parts and a callback read."""
    flags = dict.fromkeys(("is_persistent_chkpt_loaded", "is_async_chkpt_enabled", "is_setup_section_open"), False)
    counts = dict.fromkeys(("seen_checkpoints_cnt", "seen_tr_iters_cnt", "curr_eval_iter_idx"), 0)
    return argparse.Namespace(
        cfg=cfg,
        train_state=argparse.Namespace(step=0),
        rank_monitor_client=None,
        signal_handler=DistributedSignalHandler(cfg.train.exit_signal) if cfg.train.exit_signal_handler else None,
        fault_tolerance_state=argparse.Namespace(**flags, **counts, is_calculating_timeouts=False),
        start_time=time.time(),
    )


class Saved:
    """One number for a model, in a file an iteration, and the tracker of Megatron-Bridge."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.tracker = self.directory / "latest_checkpointed_iteration.txt"

    def load(self) -> tuple[int, torch.Tensor]:
        if not self.tracker.exists():
            return 0, torch.zeros(1)
        step = int(self.tracker.read_text())
        return step, torch.load(self.directory / f"{step}.pt", weights_only=True)

    def save(self, step: int, weight: torch.Tensor) -> None:
        dist.barrier()
        if tiny.RANK == 0:
            torch.save(weight, self.directory / f"{step}.pt")
            self.tracker.write_text(str(step))


def pretrain(cfg: argparse.Namespace, callbacks: list[Any]) -> None:
    manager = bridge_callbacks.normalize_callbacks(callbacks)
    state = new_state(cfg)
    if state.signal_handler is not None:
        state.signal_handler.__enter__()
    dist.init_process_group("gloo")
    if cfg.ft.enable_ft_package:
        fault_tolerance.setup(cfg, state)
    saved = Saved(cfg.checkpoint.save)
    state.train_state.step, weight = saved.load()
    train(state, saved, weight, manager)
    dist.barrier()
    if state.train_state.step and cfg.checkpoint.save_interval:
        saved.save(state.train_state.step, weight)
    fault_tolerance.shutdown(state)
    if tiny.RANK == 0:
        (tiny.ROOT / "result.txt").write_text(f"{weight.item()}")
    dist.destroy_process_group()


def train(state: argparse.Namespace, saved: Saved, weight: torch.Tensor, manager: Any) -> None:
    def fire(event: str) -> None:
        if bridge_callbacks.should_fire(manager, event):
            context = bridge_callbacks.CallbackContext(state=state, model=[], user_state=manager.user_state)
            manager.fire(event, context)

    fire("on_train_start")
    while state.train_state.step < state.cfg.train.train_iters:
        fault_tolerance.on_training_step_start(state)
        fire("on_train_step_start")
        tiny.log_step(state.train_state.step)
        time.sleep(STEP_S)
        part = torch.full((1,), float(state.train_state.step + tiny.RANK))
        dist.all_reduce(part)
        weight += part
        fault_tolerance.on_training_step_end(state)
        fire("on_train_step_end")
        state.train_state.step += 1
        if should_exit(state, saved, weight):
            fault_tolerance.shutdown(state)
            sys.exit(0)
    fire("on_train_end")


def should_exit(state: argparse.Namespace, saved: Saved, weight: torch.Tensor) -> bool:
    """Megatron-Bridge's checkpoint_and_decide_exit."""
    cfg, step = state.cfg, state.train_state.step
    signalled = cfg.train.exit_signal_handler and any(state.signal_handler.signals_received())
    due = bool(cfg.checkpoint.save_interval) and step % cfg.checkpoint.save_interval == 0
    late = (
        bool(cfg.train.exit_duration_in_mins) and time.time() - state.start_time > cfg.train.exit_duration_in_mins * 60
    )
    ends = bool(cfg.train.exit_interval) and step % cfg.train.exit_interval == 0
    if cfg.checkpoint.save and (signalled or due or late or ends):
        fault_tolerance.on_checkpointing_start(state)
        saved.save(step, weight)
        fault_tolerance.on_checkpointing_end(is_async_finalization=False, global_state=state)
    exits = bool(signalled or late or ends)
    if exits:
        dist.barrier()
    return exits


def main() -> None:
    os.environ.setdefault("LOCAL_RANK", "0")
    cfg = configuration([argument for argument in sys.argv[1:] if "=" in argument])
    Path(cfg.checkpoint.save).mkdir(parents=True, exist_ok=True)
    with ResiliencyCallback() as callback:
        pretrain(cfg, callbacks=[callback])


if __name__ == "__main__":
    main()
