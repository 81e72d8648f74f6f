"""Notes down what a rank was given: its arguments, its variables, and the configuration that holds."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.runtime.effective import resolve

OWN = runtime.FaultToleranceConfig(warmup_steps=11, section_span_s=0.25, timeout_floor_s=12.5)


def main() -> None:
    with runtime.session(OWN) as session:
        config = dataclasses.asdict(resolve(runtime.FaultToleranceConfig, OWN, os.environ))
        content = {"arguments": sys.argv[1:], "env": dict(os.environ), "config": config}
        Path(os.environ["TEST_ROOT"], f"given-{os.environ['RANK']}.json").write_text(json.dumps(content))
        session.finish()


if __name__ == "__main__":
    main()
