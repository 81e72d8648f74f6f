"""Submits the trainer through submitit as a command under FaultTolerancePlugin; prints the job's id and its results."""

from __future__ import annotations

import os
import sys

import submitit

from nemo_resiliency_plugins import FaultTolerancePlugin
from nemo_resiliency_plugins.plugins.plain_slurm import submitit_parameters
from nemo_resiliency_plugins.runtime.node_task import NodeTask

if __name__ == "__main__":
    root, scripts = os.environ["TEST_ROOT"], os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    plugin = FaultTolerancePlugin(num_in_job_restarts=1, fault_script=sys.argv[1], warmup_steps=2)
    parameters = submitit_parameters([plugin], directory=f"{root}/nrp", nodes=2, ranks_per_node=2)
    executor = submitit.AutoExecutor(folder=f"{root}/submitit", cluster="slurm")
    # A limit of two minutes leaves the retry policy nothing but a requeue.
    executor.update_parameters(timeout_min=2, **parameters)
    job = executor.submit(NodeTask(["python", f"{scripts}/trainer.py", *sys.argv[2:]]))
    print(job.job_id, job.results())
