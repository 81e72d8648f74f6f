"""Scripts for Slurm: of the jobs that NeMo-Run submits, and for plain ``sbatch``."""
