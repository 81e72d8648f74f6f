"""What users call: a train function that starts again in the same process after a fault."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from nemo_resiliency_plugins.config import InProcessRestartConfig
from nemo_resiliency_plugins.runtime.effective import resolve
from nemo_resiliency_plugins.runtime.in_process import checks
from nemo_resiliency_plugins.runtime.in_process.meeting import adopt_numbers
from nemo_resiliency_plugins.runtime.log import logger


def inprocess(train_fn: Callable[..., Any], config: InProcessRestartConfig | None = None) -> Callable[..., Any]:
    """``train_fn``, made to start again in the same process after an exception, a hang or the loss of a rank.

    The function must do all that a start needs: open the session, call ``init_process_group`` (without a store or an
    address: each life gets MASTER_ADDR and MASTER_PORT of its own), build the model, ``attach``, and train. A
    parameter annotated with NVRx's ``CallWrapper`` receives it.

    How often, in all: ``max_iterations`` entries in each process, times the starts by the launcher, times those by the
    retry policy. An error that returns in the same step, or three times without a newer checkpoint, ends it before.

    Args:
        config: what the script asks for; the plugin's variables and file win over it, field by field. Where the
            result is not ``enabled``, ``train_fn`` itself is returned.

    Returns:
        A function with the arguments of ``train_fn``. It returns what that returns, on a spare rank None; it raises
        the function's last error, or a ResiliencyError, when the launcher has to take over.

    Raises:
        ConfigError: a bad value, or a variable that contradicts in-process restart; from the call also a breach of
            its preconditions.
        UnsupportedError: a missing or unsuitable version of NVRx, torch or NCCL.
    """
    settings = resolve(InProcessRestartConfig, config, os.environ)
    if not settings.enabled:
        logger().info("InProcessRestartConfig.enabled is False: the train function is called as it is")
        return train_fn
    adopt_numbers(os.environ)
    checks.set_variables(os.environ, torch_is_loaded="torch" in sys.modules)

    @functools.wraps(train_fn)
    def restarting(*args: Any, **kwargs: Any) -> Any:
        from nemo_resiliency_plugins.runtime.in_process.restarter import Restarter

        checks.check_here(settings)
        return Restarter(train_fn, settings).run(args, kwargs)

    return restarting
