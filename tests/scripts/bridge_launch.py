"""A launch script as one writes it for Megatron-Bridge; prints what Slurm and every node would run.

``python bridge_launch.py DIRECTORY``: where the job's files go.
"""

import sys
from pathlib import Path

import nemo_run as run
from megatron.bridge.recipes.run_plugins import FaultTolerancePlugin, PreemptionPlugin

home = Path(sys.argv[1]) / "experiments"
task = run.Script("pretrain.py", entrypoint="python", args=["train.train_iters=100", "checkpoint.save=/shared/ckpt"])
executor = run.SlurmExecutor(
    account="me",
    partition="gpu",
    nodes=2,
    ntasks_per_node=8,
    gpus_per_node=8,
    time="04:00:00",
    container_image="my-image",
    tunnel=run.LocalTunnel(job_dir=str(home)),
    packager=run.Packager(),
    poll_estimated_start_time=False,
)
plugins = [FaultTolerancePlugin(num_in_job_restarts=5, rank_heartbeat_timeout=120), PreemptionPlugin(preempt_time=300)]
with run.Experiment("pretrain", base_dir=str(home.parent)) as experiment:
    experiment.add(task, executor=executor, plugins=plugins, name="bridge")
    experiment.dryrun(delete_exp_dir=False)
