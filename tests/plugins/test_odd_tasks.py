"""Tasks that NeMo-Run takes and cannot start end in one clear error, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import ConfigError, FaultTolerancePlugin, PreemptionPlugin, StragglerPlugin
from tests.plugins.slurm import make

PLUGINS = [FaultTolerancePlugin(), PreemptionPlugin(), StragglerPlugin()]
each_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: type(plugin).__name__)


@pytest.mark.parametrize(
    ("make_task", "text"),
    [
        (lambda: "python train.py", "must be a run.Script or a run.Partial"),
        (lambda: None, "must be a run.Script or a run.Partial"),
        (lambda: print, "must be a run.Script or a run.Partial"),
        (lambda: run.Config(dict), "must be a run.Script or a run.Partial"),
        (lambda: run.Script(Path("train.py"), entrypoint="python"), r"task\.path=.*Give str\(path\)"),  # type: ignore[arg-type]
        (lambda: run.Script("train.py", args=None), r"task\.args=None"),  # type: ignore[arg-type]
        (lambda: run.Script("train.py", args="--a"), r"task\.args='--a'"),  # type: ignore[arg-type]
        (lambda: run.Script("train.py", entrypoint="python 'x"), r"task\.entrypoint=.*Close its quotes"),
    ],
)
@each_plugin
def test_it_is_refused(
    executor: run.LocalExecutor, tmp_path: Path, plugin: Any, make_task: Callable[[], Any], text: str
) -> None:
    for each in (executor, make(tmp_path)):
        with pytest.raises(ConfigError, match=text):
            plugin.setup(make_task(), each)
        with pytest.raises(ConfigError, match=text):
            plugin.preview(make_task(), each)


@each_plugin
def test_a_script_without_variables_is_none_of_them(executor: run.LocalExecutor, tmp_path: Path, plugin: Any) -> None:
    for each in (executor, make(tmp_path)):
        plugin.setup(run.Script("train.py", entrypoint="python", env=None), each)  # type: ignore[arg-type]
