"""Suspect results of a step: seen before the optimizer uses them, tried again, and attributed to a device or not."""
