"""A loop of Megatron-Bridge that Megatron's re-run state machine ends: rank 1 has rejected a result.

The machine itself needs a GPU: what stands here has the attributes by which it remembers the result. Arguments: the
exit code, and whether the machine is there.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from types import ModuleType

import tiny
import torch
import torch.distributed as dist

from nemo_resiliency_plugins.integrations.megatron_bridge import ResiliencyCallback
from nemo_resiliency_plugins.integrations.megatron_results import MACHINE

CODE, IS_THERE = int(sys.argv[1]), sys.argv[2] == "there"


def machine() -> Namespace:
    call = Namespace(caller=Namespace(message="rejected nan", rank=tiny.RANK), sequence=1)
    rejected = tiny.RANK == 1
    return Namespace(
        rerun_requested=rejected,
        failed_validation_call=call,  # on rank 0 that of an earlier iteration
        initial_result=torch.tensor(float("nan")),
        current_iteration=3,
        suspicious_device=0 if rejected else None,
    )


def main() -> None:
    train = Namespace(exit_signal_handler=False, exit_signal=15, exit_interval=None, exit_duration_in_mins=None)
    cfg = Namespace(train=train, checkpoint=Namespace(save=str(tiny.ROOT)))
    state = Namespace(cfg=cfg, train_state=Namespace(step=3), rank_monitor_client=None)
    if IS_THERE:
        module = sys.modules[MACHINE] = ModuleType(MACHINE)
        made = machine()
        module.get_rerun_state_machine = lambda: made
    dist.init_process_group("gloo")
    with ResiliencyCallback() as callback:
        callback.on_train_start(Namespace(state=state))
        sys.exit(CODE)


if __name__ == "__main__":
    main()
