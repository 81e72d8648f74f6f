"""Scripts for Slurm; the first ones come with the node launcher."""
