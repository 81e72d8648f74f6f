"""Preemption in the job: a signal is noticed by a thread, all ranks agree on a step, save after it and leave."""
