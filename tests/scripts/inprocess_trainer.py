"""The trainer under in-process restart: whatever starts the ranks and configures it, the function is the same."""

from __future__ import annotations

import trainer

from nemo_resiliency_plugins import runtime

if __name__ == "__main__":
    runtime.inprocess(trainer.main)()
