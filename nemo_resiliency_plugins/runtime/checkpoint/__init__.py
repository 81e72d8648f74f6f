"""Checkpoints of the runtime. A checkpoint exists when its commit marker does."""
