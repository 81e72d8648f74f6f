"""Values reach every rank of a job as they were meant: commas, what expands and what does not, and who wins."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import subprocess
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin, runtime
from nemo_resiliency_plugins.contract import OUT_OF_SECTION, variable
from nemo_resiliency_plugins.plugins.fault_tolerance import FaultTolerancePluginScriptArgs
from tests.harness import SCRIPTS
from tests.scripts.given import OWN
from tests.slurm.submitting import Submitted, submit
from tests.slurm.testbed import Cluster

RANKS = range(4)
ARGUMENTS = ["--devices=0,1,2", "--pairs", "a=b,c", ",", "x,,y"]
LITERAL = ["$HOME", "${head_node_ip}", "$$", "`id`", "$(id)", 'it\'s \\ "it"', "c=d,e"]
WITH_COMMAS = {"DEVICES": "0,1,2", "PAIRS": "a=b,c", "FLAGS": ",x,,y,"}
REFERRING = {"HEAD": "${head_node_ip}", "JOB": "$SLURM_JOB_ID", "ADDRESS": "tcp://${head_node_ip}:1,id=${SLURM_JOB_ID}"}


def literal_arguments(_: FaultTolerancePluginScriptArgs) -> list[str]:
    return LITERAL


@dataclasses.dataclass(kw_only=True)
class Sender(run.Plugin):
    """Stands for any plugin of ours that lets the node script set a variable."""

    def setup(self, task: Any, executor: run.SlurmExecutor) -> None:
        executor.launcher.variables["SENT"] = "\n".join(LITERAL)


@dataclasses.dataclass(frozen=True)
class Given:
    """A job that has ended, and what its ranks were given."""

    job: Submitted
    plugin: FaultTolerancePlugin
    ranks: list[dict[str, Any]]

    def everywhere(self, *keys: Any) -> Any:
        """The value at ``keys``, which has to be the same on every rank."""
        first, *others = [functools.reduce(operator.getitem, keys, rank) for rank in self.ranks]
        assert others == [first] * (len(RANKS) - 1)
        return first

    def limits(self) -> list[dict[str, float | None]]:
        """What the monitor of each rank has answered."""
        events = (self.job.events("timeouts", rank=rank) for rank in RANKS)
        return [event["limits_s"] for [event] in events]

    @property
    def limits_of_the_plugin(self) -> dict[str, float | None]:
        return {**self.plugin.section_timeouts(), OUT_OF_SECTION: self.plugin.out_of_section_timeout()}


def give(cluster: Cluster, root: Path, plugin: FaultTolerancePlugin, env: dict[str, str], **options: Any) -> Given:
    task = run.Script(str(SCRIPTS / "given.py"), entrypoint="python", args=list(ARGUMENTS))
    job = submit(cluster, root, task, [plugin, Sender()], env=env, nodes=2, ntasks_per_node=2, **options)
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    directory = job.directory if "container_image" in options else root
    return Given(job, plugin, [json.loads((directory / f"given-{rank}.json").read_text()) for rank in RANKS])


@pytest.fixture(scope="module", params=["host", "container"])
def given(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Given:
    plugin = FaultTolerancePlugin(
        rank_section_timeouts={"step": 61.5, "evaluation": 45, "io": None},
        rank_out_of_section_timeout=77,
        fault_script="kill@1:3,hang@0:5,exception@3:1",
        script_args_converter_fn=literal_arguments,
    )
    env, options = {**WITH_COMMAS, **REFERRING}, {}
    if request.param == "container":
        env["TEST_ROOT"] = "/nemo_run"
        options["container_image"] = cluster.add_image("plain", {})
    return give(cluster, tmp_path_factory.mktemp("given"), plugin, env, **options)


@pytest.mark.parametrize("name", WITH_COMMAS)
def test_a_variable_of_the_user_keeps_its_commas(given: Given, name: str) -> None:
    assert given.everywhere("env", name) == WITH_COMMAS[name]


def test_arguments_keep_their_commas_and_what_would_expand(given: Given) -> None:
    assert given.everywhere("arguments") == [*ARGUMENTS, *LITERAL]


def test_values_of_the_plugin_keep_their_commas(given: Given) -> None:
    assert given.everywhere("config", "fault_script") == "kill@1:3,hang@0:5,exception@3:1"
    assert given.limits() == [given.limits_of_the_plugin] * len(RANKS)


def test_a_variable_of_the_user_may_refer_to_those_of_the_batch_script(given: Given) -> None:
    head = subprocess.run(["hostname", "--ip-address"], capture_output=True, text=True, check=True).stdout.strip()
    job_id = given.job.job_id
    expected = {"HEAD": head, "JOB": job_id, "ADDRESS": f"tcp://{head}:1,id={job_id}"}
    assert {name: given.everywhere("env", name) for name in REFERRING} == expected


def test_a_variable_of_a_plugin_is_literal(given: Given) -> None:
    assert given.everywhere("env", "SENT") == "\n".join(LITERAL)


def test_the_effective_configuration_is_logged_once_and_is_that_of_every_rank(cluster: Cluster, tmp_path: Path) -> None:
    plugin = FaultTolerancePlugin(warmup_steps=7, section_span_s=0.5, rank_heartbeat_timeout=66)
    given = give(cluster, tmp_path, plugin, {variable("fault_tolerance", "section_span_s"): "0.125"})
    switches = {"enable_ft_package": True, "calc_ft_timeouts": True}
    expected = runtime.FaultToleranceConfig(
        **switches, warmup_steps=7, section_span_s=0.125, timeout_floor_s=OWN.timeout_floor_s
    )
    [said] = [line for line in given.job.log.splitlines() if "effective configuration" in line]
    assert str(expected) in said
    assert given.everywhere("config") == dataclasses.asdict(expected)
    assert given.limits() == [given.limits_of_the_plugin] * len(RANKS)
