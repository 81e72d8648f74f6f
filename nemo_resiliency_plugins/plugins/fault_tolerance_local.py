"""FaultTolerancePlugin on LocalExecutor: NeMo-Run starts ``ft_launcher``, variables and a file tell it the rest."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import nemo_run as run
import yaml
from nemo_run.config import get_nemorun_home

from nemo_resiliency_plugins.compat import nvrx
from nemo_resiliency_plugins.config import FaultToleranceConfig
from nemo_resiliency_plugins.config.rules import defaults
from nemo_resiliency_plugins.contract import ENV_DIR
from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.plugins.edits import Edit, Note, RunThroughStub, SetEnv, WriteFile
from nemo_resiliency_plugins.plugins.launcher import OwningLauncher, take_over
from nemo_resiliency_plugins.plugins.launcher_edits import UseLauncher
from nemo_resiliency_plugins.plugins.nested import nested_launchers
from nemo_resiliency_plugins.plugins.telling import by_variables, without_effect

if TYPE_CHECKING:
    from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePlugin

TIMES = ("monitor_interval", "workers_stop_timeout", "term_timeout")
SLURM_ONLY = (
    "num_job_retries_on_failure",
    "max_job_attempts",
    "start_skew_s",
    "spare_nodes",
    "prestart_imports",
    "trains",
)


def plan(plugin: FaultTolerancePlugin, task: run.Script | run.Partial, executor: run.LocalExecutor) -> Iterator[Edit]:
    """The edits; see the module."""
    owner = type(plugin).__name__
    if executor.nodes != 1:
        raise UnsupportedError("executor.nodes", executor.nodes, "LocalExecutor is one machine", "Set nodes=1.")
    yield from nested_launchers(owner, task, executor.ntasks_per_node)
    nvrx.check_version(nvrx.installed_version())
    yield UseLauncher(owner, take_over(executor.launcher, OwningLauncher(max_restarts=plugin.num_in_job_restarts)))
    yield from variables(plugin, executor, owner)
    if isinstance(task, run.Script) and task.path:
        yield RunThroughStub(owner)
    else:
        refuse_zero_code_if_strict(plugin, owner)
        text = "only a run.Script with a path is watched before its session starts, or without one"
        yield Note(owner, text, warn=plugin.zero_code)
    yield from without_effect(owner, plugin, SLURM_ONLY)


def refuse_zero_code_if_strict(plugin: FaultTolerancePlugin, owner: str) -> None:
    """Raises UnsupportedError where nothing would come of ``zero_code``."""
    if plugin.zero_code and plugin.strict:
        rule = "needs a run.Script with a path, which the launch stub can run"
        raise UnsupportedError(f"{owner}.zero_code", plugin.zero_code, rule, "Leave it out, or give such a task.")


def variables(plugin: FaultTolerancePlugin, executor: run.LocalExecutor, owner: str) -> Iterator[Edit]:
    settings = monitor_file(plugin, owner)
    yield settings
    yield SetEnv(owner, "PET_FT_CFG_PATH", str(settings.path))
    usual = defaults(plugin)
    times = {name: getattr(plugin, name) for name in TIMES}
    for name, value in nvrx.launcher_variables(**times).items():
        field = name.removeprefix("PET_").lower()
        yield SetEnv(owner, name, value, firm=field in times and times[field] != usual[field])
    yield SetEnv(owner, ENV_DIR, str((Path(executor.job_dir) / "nrp").absolute()))
    yield from by_variables(owner, FaultToleranceConfig.PLUGIN, plugin.told_to_the_job(), strict=plugin.strict)
    path = os.pathsep.join(filter(None, (executor.env_vars.get("PATH"), os.environ.get("PATH"))))
    if shutil.which("ft_launcher", path=path) is None:
        yield SetEnv(owner, "PATH", str(Path(sys.executable).parent))


def monitor_file(plugin: FaultTolerancePlugin, owner: str) -> WriteFile:
    text = yaml.safe_dump(plugin.monitor_settings(), sort_keys=False)
    name = f"ft-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    return WriteFile(owner, Path(get_nemorun_home()) / "nrp" / name, text)
