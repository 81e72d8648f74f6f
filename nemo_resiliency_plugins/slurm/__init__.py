"""What this project knows of Slurm, without NeMo-Run."""
