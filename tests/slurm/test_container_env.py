"""An image that sets the variables which the plugins set as well, on a real Slurm cluster."""

from __future__ import annotations

from pathlib import Path

import nemo_run as run
import pytest

from nemo_resiliency_plugins import InProcessRestartPlugin, PreemptionPlugin
from nemo_resiliency_plugins.slurm.inprocess import VARIABLES
from tests.slurm.submitting import submit
from tests.slurm.testbed import Cluster

OF_THE_IMAGE = {
    **dict.fromkeys(VARIABLES, "of-the-image"),
    "NRP_DIR": "/of-the-image",
    "NRP_STRICT": "of-the-image",
    "NRP_ROUND": "9",
    "NCCL_DEBUG": "WARN",
    "LOGLEVEL": "DEBUG",
}


@pytest.mark.slow
def test_the_values_of_the_plugins_win(cluster: Cluster, tmp_path: Path) -> None:
    task = run.Script(inline="echo; env | sed 's/^/is: /'")
    image = cluster.add_image("opinionated", OF_THE_IMAGE)
    env = {"NCCL_DEBUG": "INFO", "LOGLEVEL": "ERROR"}
    plugins = [InProcessRestartPlugin(strict=True), PreemptionPlugin()]
    job = submit(cluster, tmp_path, task, plugins, env=env, container_image=image, container_env=["NCCL_DEBUG"])
    assert job.ended() == ("COMPLETED", "0:0"), job.log
    found = dict(line[4:].split("=", 1) for line in job.log.splitlines() if line.startswith("is: ") and "=" in line)
    assert {name: found[name] for name in VARIABLES} == VARIABLES
    expected = {"NRP_DIR": "/nemo_run/nrp", "NRP_STRICT": "true", "NRP_ROUND": "0", "NCCL_DEBUG": "INFO"}
    assert {name: found[name] for name in expected} == expected
    assert found["LOGLEVEL"] == "DEBUG", "nobody has named it"
