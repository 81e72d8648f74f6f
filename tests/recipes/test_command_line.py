"""What can be chosen and overridden on NeMo-Run's command lines."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest
from nemo_run.cli.api import InvalidOptionError

from nemo_resiliency_plugins import ConfigError, FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.recipes import factories
from nemo_resiliency_plugins.recipes.command_line import (
    COMMANDS,
    NAMESPACE,
    RUN,
    Context,
    refuse_what_would_be_lost,
    script,
)
from nemo_resiliency_plugins.recipes.plugin_sets import fast_recovery, fault_drill, preemptible, production, with_fields

FUNCTIONS = "script_args_converter_fn"
"""No text stands for a function."""
OTHER = {bool: "false", int: "7", float: "7.5", str: "torch_dist"}
SPECIAL: dict[str, tuple[str, Any]] = {
    "rank_section_timeouts": ("{'step': 61.5}", {"step": 61.5}),
    "prestart_imports": ("['torch', 'megatron.core']", ["torch", "megatron.core"]),
    "signal": ("USR2", "USR2"),
    "overrides": ("megatron_bridge", "megatron_bridge"),
    "fault_script": ("kill@1:23,hang@0:42", "kill@1:23,hang@0:42"),
    "non_persistent_local_ckpt_dir": ("/scratch/a.b", "/scratch/a.b"),
    "monitor_process_logdir": ("/scratch/a.b", "/scratch/a.b"),
    "active_world_size": ("none", None),
    "rank_out_of_section_timeout": ("inf", float("inf")),
}


def parsed(*arguments: str) -> Context:
    context = Context(name="test")
    context.parse_args(list(arguments))
    return context


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["plugins=production"], production()),
        (["plugins=fast_recovery(/scratch, 5)"], fast_recovery("/scratch", 5)),
        (["plugins=fault_drill(kill@0:3)"], fault_drill("kill@0:3")),
        (["plugins=preemptible", "plugins[3].enabled=false"], [*preemptible()[:3], None]),
        (
            ["plugins=production", "plugins[1].preempt_time=300"],
            with_fields(production(), PreemptionPlugin, preempt_time=300),
        ),
    ],
)
def test_a_plugin_set_is_chosen_and_a_field_of_it_overridden(arguments: list[str], expected: list[Any]) -> None:
    plugins = parsed(*arguments).plugins
    for plugin, wanted in zip(plugins, expected, strict=True):
        assert plugin == wanted if wanted is not None else not plugin.enabled


def test_an_executor_is_chosen_and_overridden() -> None:
    fields = ["account=me", "nodes=4", "time=24:00:00", "packager=ship_nothing"]
    chosen = parsed("executor=slurm", *(f"executor.{field}" for field in fields)).executor
    assert (chosen.account, chosen.nodes, chosen.time) == ("me", 4, "24:00:00")
    assert chosen.packager == run.Packager()
    assert chosen.tunnel.job_dir.endswith("/experiments")
    over_ssh = ["account=me", "tunnel.host=login", "tunnel.user=me", "tunnel.job_dir=/shared/me"]
    chosen = parsed("executor=slurm_over_ssh", *(f"executor.{field}" for field in over_ssh)).executor
    assert chosen.tunnel == run.SSHTunnel(host="login", user="me", job_dir="/shared/me")


@pytest.mark.parametrize("plugin", factories.PLUGINS, ids=lambda plugin: plugin.__name__)
def test_every_field_of_every_plugin_can_be_overridden(plugin: type) -> None:
    for field in dataclasses.fields(plugin):
        if not field.init or field.name == FUNCTIONS:
            continue
        default = getattr(plugin(), field.name)
        text, expected = SPECIAL.get(field.name) or (OTHER.get(type(default), "7"),) * 2
        [config] = run.cli.parse_cli_args([run.Config(plugin)], [f"[0].{field.name}={text}"])
        read = getattr(config, field.name)
        assert read == expected or str(read).lower() == expected or read == float(expected), field.name
        assert not isinstance(read, str) or isinstance(default, str | None), field.name


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plugins[0].warmup_steps=60"], r"plugins\[0\].* has no effect without run.plugins="),
        (["plugins=production", "executor.nodes=4"], "has no effect without run.executor="),
        (["executor=slurm", "executor.container_image=/images/run.sqsh"], "removes 'run.' from values"),
        (["executor=slurm", "executor.comment=executor.one"], "removes 'executor.' from values"),
        (["plugins=fault_drill(faults=kill@0:3)"], "cuts it at the second '='. Give values by position"),
    ],
)
def test_what_nemo_run_would_lose_is_refused(arguments: list[str], text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        Context(name="test").cli_execute(script, ["path=train.py", *(RUN + each for each in arguments)])


def test_nothing_else_is_refused() -> None:
    chosen = ["executor=slurm", "executor.nodes=4", "executor.env_vars={'A': 'b=c'}"]
    refuse_what_would_be_lost([*chosen, "plugins=fault_drill(kill@0:3)", "plugins[0].strict=true", "dryrun=true"])


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("plugins[0].no_such_field=1", "No parameter named 'no_such_field'"),
        ("plugins[0].num_in_job_restarts=many", "Invalid integer literal"),
        ("plugins[0].overrides=1", "must be one of None, 'megatron_bridge'"),
        ("plugins[9].strict=true", "Invalid index '9'"),
    ],
)
def test_what_cannot_be_set_is_an_error(argument: str, text: str) -> None:
    with pytest.raises(Exception) as raised:
        parsed("plugins=production", argument)
    said = [str(raised.value), str(raised.value.__cause__)]
    assert text in " ".join(said)


def test_a_value_that_breaks_its_rule_is_refused_before_anything_is_submitted() -> None:
    with pytest.raises(ConfigError, match=r"preempt_time=0: must be"):
        parsed("plugins=production", "plugins[1].preempt_time=0")


def test_the_command_of_the_readme_is_understood() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    [block] = re.findall(r"```bash\n(nemorun .*?)```", text, flags=re.DOTALL)
    program, namespace, name, *arguments = shlex.split(block.replace("\\\n", " "))
    assert (program, namespace) == ("nemorun", NAMESPACE)
    [command] = [each for each in COMMANDS if each.__name__ == name]
    own = run.cli.parse_partial(command, *(each for each in arguments if not each.startswith(RUN)))
    assert (own.path, own.args) == ("train.py", "--steps 100")
    context = parsed(*(each.removeprefix(RUN) for each in arguments if each.startswith(RUN)))
    assert context.executor == run.LocalExecutor(ntasks_per_node=2)
    assert context.plugins == with_fields(preemptible(), FaultTolerancePlugin, rank_heartbeat_timeout=60)
