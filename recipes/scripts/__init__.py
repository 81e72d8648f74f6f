"""Training scripts that the recipes start."""
