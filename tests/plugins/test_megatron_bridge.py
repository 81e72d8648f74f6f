"""The drop-in module beside Megatron-Bridge's own: same names, parameters and overrides."""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fiddle as fdl
import nemo_run as run
import pytest
from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

from nemo_resiliency_plugins import ConflictError, UnsupportedError, megatron_bridge
from tests.harness import SCRIPTS, clean_env
from tests.plugins.slurm import make, told
from tests.versions import megatron

RUN_PLUGINS = "recipes/run_plugins.py"
PLUGINS = ("FaultTolerancePlugin", "PreemptionPlugin")
CLASSES = (*PLUGINS, *(f"{name}ScriptArgs" for name in PLUGINS))
FAULT_TOLERANCE: list[dict[str, Any]] = [
    {},
    {"enable_ft_package": False},
    {"calc_ft_timeouts": False, "num_in_job_restarts": 0, "num_job_retries_on_failure": 7},
    {"initial_rank_heartbeat_timeout": 600, "rank_heartbeat_timeout": 60},
]
PREEMPTION: list[dict[str, Any]] = [
    {},
    {"enable_exit_handler_for_data_loader": True, "preempt_time": 300},
    {"enable_exit_handler": False},
    {"enable_exit_handler": False, "enable_exit_handler_for_data_loader": True},
]
SETTINGS = [
    *(("FaultTolerancePlugin", each) for each in FAULT_TOLERANCE),
    *(("PreemptionPlugin", each) for each in PREEMPTION),
]
each_version = pytest.mark.parametrize("version", megatron.VERSIONS)


def declared(version: str, name: str) -> dict[str, Any]:
    """The fields of one of Megatron-Bridge's dataclasses with their defaults, in order; ``...`` for none."""
    tree = ast.parse(megatron.definition(version, RUN_PLUGINS, name))
    [node] = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return {ast.unparse(each.target): ast.literal_eval(each.value) if each.value else ... for each in fields}


def ours(name: str) -> dict[str, Any]:
    fields = dataclasses.fields(getattr(megatron_bridge, name))
    made = [each for each in fields if each.init]
    return {each.name: ... if each.default is dataclasses.MISSING else each.default for each in made}


@pytest.fixture(params=megatron.VERSIONS)
def theirs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Megatron-Bridge's own module, importable for a test."""
    monkeypatch.syspath_prepend(megatron.python_path(request.param))
    yield __import__("megatron.bridge.recipes.run_plugins", fromlist=["*"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron"]:
        del sys.modules[name]


@each_version
@pytest.mark.parametrize("name", CLASSES)
def test_parameters_order_and_defaults_are_megatron_bridges(version: str, name: str) -> None:
    expected, found = declared(version, name), ours(name)
    assert expected
    assert [(each, found[each]) for each in found if each in expected] == list(expected.items())
    assert name in PLUGINS or list(found) == list(expected)
    assert sorted(megatron_bridge.__all__) == sorted(CLASSES)


@pytest.mark.parametrize(("name", "fields"), SETTINGS, ids=str)
def test_the_script_and_slurm_are_told_the_same(
    theirs: ModuleType, task: run.Script, tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    jobs = [(copy.deepcopy(task), make(tmp_path)) for _ in range(2)]
    for module, job in zip((theirs, megatron_bridge), jobs, strict=True):
        getattr(module, name)(**fields).setup(*job)
    (their_task, their_executor), (our_task, our_executor) = jobs
    assert our_task.args == their_task.args
    assert our_executor.signal == their_executor.signal
    if name == "FaultTolerancePlugin":
        shared = ("max_restarts", "initial_rank_heartbeat_timeout", "rank_heartbeat_timeout")
        values = [[getattr(executor.launcher, each) for each in shared] for executor in (their_executor, our_executor)]
        assert values[0] == values[1]
        assert our_executor.launcher.policy["max_failures"] == their_executor.retries


def as_options(args: Any) -> list[str]:
    return [f"--{name}={value}" for name, value in dataclasses.asdict(args).items()]


@pytest.mark.parametrize("name", PLUGINS)
def test_a_converter_is_given_the_same(theirs: ModuleType, tmp_path: Path, name: str) -> None:
    added = []
    for module in (theirs, megatron_bridge):
        task = run.Script("train.py", entrypoint="python")
        getattr(module, name)(script_args_converter_fn=as_options).setup(task, make(tmp_path))
        added.append(task.args)
    assert added[0] == added[1] != []


def test_other_names_are_megatron_bridges_own(theirs: ModuleType) -> None:
    assert megatron_bridge.NsysPlugin is theirs.NsysPlugin
    with pytest.raises(ImportError, match=r"NoPlugin is none of FaultTolerancePlugin, .*has it not"):
        megatron_bridge.NoPlugin  # noqa: B018


def test_without_megatron_bridge_other_names_say_where_they_are_from() -> None:
    with pytest.raises(ImportError, match=r"NsysPlugin is none of .*, and megatron\.bridge\.recipes\.run_plugins"):
        from nemo_resiliency_plugins.megatron_bridge import NsysPlugin  # noqa: F401


def test_a_launch_script_switches_by_its_import_line(tmp_path: Path) -> None:
    script = (SCRIPTS / "bridge_launch.py").read_text()
    switched = script.replace(
        "from megatron.bridge.recipes.run_plugins import", "from nemo_resiliency_plugins.megatron_bridge import"
    )
    changed = [line for line in switched.splitlines() if line not in script.splitlines()]
    assert changed == ["from nemo_resiliency_plugins.megatron_bridge import FaultTolerancePlugin, PreemptionPlugin"]
    (tmp_path / "launch.py").write_text(switched)
    command = [sys.executable, "launch.py", str(tmp_path / "home")]
    done = subprocess.run(command, cwd=tmp_path, env=clean_env({}), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    [batch] = tmp_path.rglob("*_sbatch.sh")
    [node] = tmp_path.rglob("scripts/bridge.sh")
    assert "#SBATCH --signal=TERM@300" in batch.read_text()
    assert "/nrp/retry_policy.sh || exit 1" in batch.read_text()
    own = ["ft.enable_ft_package=true", "ft.calc_ft_timeouts=true"]
    exit_handler = ["train.exit_signal_handler=True", "train.exit_signal_handler_for_dataloader=False"]
    command_line = " ".join(["pretrain.py train.train_iters=100 checkpoint.save=/shared/ckpt", *own, *exit_handler])
    assert command_line in node.read_text()
    assert (node.parents[1] / "nrp" / "runtime.zip").exists()
    assert os.access(node.parents[1] / "nrp" / "ft.yaml", os.R_OK)


@dataclasses.dataclass
class Train:
    train_iters: int = 10
    exit_signal_handler: bool = False
    exit_signal_handler_for_dataloader: bool = False


@dataclasses.dataclass
class Ft:
    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False


@dataclasses.dataclass
class Container:
    """Has the shape of Megatron-Bridge's ConfigContainer."""

    train: Train = dataclasses.field(default_factory=Train)
    ft: Ft | None = None


def pretrain(config: Any) -> None:
    """Stands for Megatron-Bridge's function."""


def partial(config: Any) -> run.Partial:
    return run.Partial(pretrain, config=config)


CONFIGS: dict[str, Callable[..., Any]] = {
    "object": Container,
    "run.Config": lambda **fields: run.Config(
        Container, **{name: run.Config(type(each), **dataclasses.asdict(each)) for name, each in fields.items()}
    ),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def apply_both(task: run.Partial, tmp_path: Path) -> run.SlurmExecutor:
    executor = make(tmp_path)
    for _ in range(2):
        megatron_bridge.FaultTolerancePlugin(calc_ft_timeouts=False).setup(task, executor)
        megatron_bridge.PreemptionPlugin(enable_exit_handler_for_data_loader=True).setup(task, executor)
    return executor


@each_config
def test_a_partial_is_told_in_its_configuration(tmp_path: Path, config: Any) -> None:
    task = partial(config())
    executor = apply_both(task, tmp_path)
    assert (task.config.ft.enable_ft_package, task.config.ft.calc_ft_timeouts) == (True, False)
    assert task.config.train.exit_signal_handler and task.config.train.exit_signal_handler_for_dataloader
    assert told(executor)["fault_tolerance"]["enable_ft_package"] is True
    serializer = ZlibJSONSerializer()
    arrived = fdl.build(serializer.deserialize(serializer.serialize(task))).keywords["config"]
    assert arrived.ft == Ft(enable_ft_package=True, calc_ft_timeouts=False)


@each_config
def test_a_value_that_the_user_has_chosen_must_be_the_same(tmp_path: Path, config: Any) -> None:
    task = partial(config(train=Train(), ft=Ft(enable_ft_package=True, calc_ft_timeouts=True)))
    before = copy.deepcopy(task)
    with pytest.raises(
        ConflictError, match=r"task\.config\.ft\.calc_ft_timeouts=True.*FaultTolerancePlugin wants False"
    ):
        megatron_bridge.FaultTolerancePlugin(calc_ft_timeouts=False).setup(task, make(tmp_path))
    assert task == before
    megatron_bridge.FaultTolerancePlugin().setup(task, make(tmp_path))


def test_a_partial_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"task='Partial'.*a run\.Partial with a config.*Leave both unset"):
        megatron_bridge.PreemptionPlugin().setup(run.Partial(pretrain), make(tmp_path))
    with pytest.raises(UnsupportedError, match=r"task\.config='Train': has no section 'ft'"):
        megatron_bridge.FaultTolerancePlugin().setup(partial(Train()), make(tmp_path))


def test_true_and_false_are_the_same_in_any_case(tmp_path: Path) -> None:
    task = run.Script("train.py", entrypoint="python", args=["train.exit_signal_handler=true"])
    megatron_bridge.PreemptionPlugin().setup(task, make(tmp_path))
    assert task.args == ["train.exit_signal_handler=true", "train.exit_signal_handler_for_dataloader=False"]
    with pytest.raises(ConflictError, match=r"train\.exit_signal_handler=false"):
        megatron_bridge.PreemptionPlugin().setup(
            run.Script("train.py", entrypoint="python", args=["train.exit_signal_handler=false"]), make(tmp_path)
        )
