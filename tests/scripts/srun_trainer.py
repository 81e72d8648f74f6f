"""The trainer as a script that ``srun`` starts once for each rank: it knows its place from Slurm alone."""

from __future__ import annotations

import os

os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])

import trainer

trainer.main()
