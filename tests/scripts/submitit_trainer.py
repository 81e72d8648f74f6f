"""Submits the trainer through submitit, and prints the job's id."""

from __future__ import annotations

import json
import os
import sys

import submitit

from nemo_resiliency_plugins.slurm.inprocess import submitit_parameters


def train(scripts: str, arguments: list[str], fields: dict[str, object]) -> None:
    sys.path.insert(0, scripts)
    sys.argv = ["trainer.py", *arguments]
    import trainer

    from nemo_resiliency_plugins import runtime

    runtime.inprocess(trainer.main, runtime.InProcessRestartConfig(**fields))()


if __name__ == "__main__":
    root, scripts = os.environ["TEST_ROOT"], os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    executor = submitit.AutoExecutor(folder=f"{root}/submitit", cluster="slurm")
    executor.update_parameters(nodes=2, tasks_per_node=2, timeout_min=10, **submitit_parameters(f"{root}/nrp"))
    print(executor.submit(train, scripts, sys.argv[2:], json.loads(sys.argv[1])).job_id)
