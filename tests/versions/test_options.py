"""All that the package tells ft_launcher, given to the launcher's own parser: nothing unknown, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nemo_run as run
import pytest

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.compat.nvrx import check_version
from nemo_resiliency_plugins.contract import LAUNCH_MODULE, Attempt, Kind, decode_arguments
from nemo_resiliency_plugins.runtime.node import Node, start_command
from nemo_resiliency_plugins.runtime.rendezvous import ALLOW_LOOPBACK
from tests.harness import BIN, SCRIPTS, clean_env
from tests.submission import submission
from tests.versions.conftest import EACH, INSTALLED, version_env
from tests.versions.nodes import JOB_ID, node_variables, write_job

PARSE = Path(__file__).with_name("parse.py")
SCRIPT = [str(SCRIPTS / "show.py"), "--log", "a b", "--max-restarts=9", "-m", "--", "", "%41", "--rdzv", "--ft"]
GIVEN: dict[str, Any] = {
    "num_in_job_restarts": 7,
    "initial_rank_heartbeat_timeout": 1234.5,
    "rank_heartbeat_timeout": 77,
    "rank_section_timeouts": {"evaluation": 55, "export": None},
    "rank_out_of_section_timeout": 33,
    "workload_check_interval": 0.75,
    "monitor_interval": 0.35,
    "workers_stop_timeout": 4.5,
    "term_timeout": 61,
}
LAUNCH = {"max_restarts": 7, "monitor_interval": 0.35, "workers_stop_timeout": 4.5, "term_timeout": 61}
FAULTS = {
    "initial_rank_heartbeat_timeout": None,
    "rank_heartbeat_timeout": None,
    "rank_section_timeouts": {"setup": 1234.5, "step": 77, "checkpointing": 420, "evaluation": 55, "export": None},
    "rank_out_of_section_timeout": 33,
    "workload_check_interval": 0.75,
}
SINCE_0_6 = {"enable_nic_healthcheck": False, "numa_bind_strict": False, "gpu_memory_poll_interval": 0.1}
NODES, RANKS = 2, 4
Parsed = dict[str, Any]

pytestmark = pytest.mark.parametrize("version", [INSTALLED, *EACH])


def parse(options: Sequence[str], env: Mapping[str, str]) -> Parsed:
    command = [sys.executable, str(PARSE), *options]
    done = subprocess.run(command, env=clean_env(env), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    content: Parsed = json.loads(done.stdout.splitlines()[-1])
    return content


def on_slurm(version: str, root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Parsed:
    """What the launcher on this node of a Slurm job understands."""
    monkeypatch.setenv(ALLOW_LOOPBACK, "1")
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    write_job(root, FaultTolerancePlugin(**GIVEN, start_skew_s=111), nodes=NODES, ranks_per_node=RANKS)
    settings = json.loads((root / "nrp" / "config.json").read_text())["node"]
    nodes = [Node(place, NODES, Attempt(JOB_ID), root / "nrp", Kind.FT, place) for place in range(number + 1)]
    command = [start_command(settings, node, ["python", *SCRIPT], ()) for node in nodes][-1]
    options = command[command.index(str(BIN / "ft_launcher")) + 1 :]
    return parse(options, {**node_variables(root, JOB_ID, number, NODES), **version_env(version)})


def on_local(version: str, root: Path) -> Parsed:
    """What the launcher that NeMo-Run starts on LocalExecutor understands."""
    task = run.Script(SCRIPT[0], entrypoint="python", args=SCRIPT[1:])
    started = submission(task, run.LocalExecutor(ntasks_per_node=RANKS), [FaultTolerancePlugin(**GIVEN)], root)
    return parse(started.command[1:], {**started.env, **version_env(version)})


def from_0_6(parsed: Parsed) -> bool:
    return tuple(int(part) for part in parsed["version"].split(".")[:2]) >= (0, 6)


def assert_settings_arrived(parsed: Parsed) -> None:
    assert parsed["launch"] == {**parsed["launch"], **LAUNCH}
    wanted = {**FAULTS, **(SINCE_0_6 if from_0_6(parsed) else {})}
    assert parsed["faults"] == {**parsed["faults"], **wanted}


def assert_script_is_untouched(parsed: Parsed) -> None:
    _, *options, module = parsed["command"][: parsed["command"].index(LAUNCH_MODULE) + 1]
    assert options == ["-u", "-m"]
    assert decode_arguments(parsed["command"][len(options) + 2 :]) == SCRIPT
    assert module == LAUNCH_MODULE


def test_the_version_is_the_one_that_is_meant(version: str) -> None:
    parsed = parse(["script.py"], version_env(version))
    assert check_version(parsed["version"]) == parsed["version"]
    if version != INSTALLED:
        assert parsed["version"] == version
        assert f"build/versions/{version}/" in parsed["module"]


@pytest.mark.parametrize("number", range(NODES))
def test_a_slurm_node_says_all_of_it(
    version: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = on_slurm(version, tmp_path, number, monkeypatch)
    assert_settings_arrived(parsed)
    assert parsed["faults"]["enable_nic_monitor"] is False
    assert_script_is_untouched(parsed)
    sizes = {"min_nodes": NODES, "max_nodes": NODES, "nproc_per_node": RANKS}
    assert parsed["launch"] == {**parsed["launch"], **sizes, "run_id": f"{JOB_ID}-0-0", "rdzv_backend": "c10d"}
    meeting = {"is_host": str(int(number == 0)), "join_timeout": "111", "read_timeout": "111"}
    assert parsed["launch"]["rdzv_configs"] == {**parsed["launch"]["rdzv_configs"], **meeting}
    assert parsed["is_store_host"] is (number == 0)
    endpoint = (tmp_path / "nrp" / f"endpoint-{JOB_ID}-0-0").read_text().strip()
    assert parsed["launch"]["rdzv_endpoint"] == endpoint


def test_nemo_run_on_one_machine_says_all_of_it(version: str, tmp_path: Path) -> None:
    parsed = on_local(version, tmp_path)
    assert_settings_arrived(parsed)
    # NeMo-Run passes no option of ours on, and 0.4.1 turns this off by an option only.
    assert parsed["faults"]["enable_nic_monitor"] is parsed["version"].startswith("0.4.")
    assert_script_is_untouched(parsed)
    assert parsed["launch"] == {**parsed["launch"], "min_nodes": 1, "max_nodes": 1, "nproc_per_node": RANKS}


def test_every_setting_is_a_field_of_the_version(version: str) -> None:
    parsed = parse(["script.py"], version_env(version))
    [content] = FaultTolerancePlugin().monitor_settings().values()
    lacking = set(content) - set(parsed["faults"])
    assert lacking == (set() if from_0_6(parsed) else set(SINCE_0_6))
