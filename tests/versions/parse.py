"""Prints what the launcher of the NVRx on ``PYTHONPATH`` makes of its options: ``python parse.py OPTIONS``."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import sys
import warnings
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousParameters


def parsed(options: list[str]) -> dict[str, Any]:
    launcher = importlib.import_module("nvidia_resiliency_ext.fault_tolerance.launcher")
    config, entrypoint, arguments = launcher.config_from_args(launcher.parse_args(options))
    nodes = {"min_nodes": config.min_nodes, "max_nodes": config.max_nodes}
    meeting = RendezvousParameters(
        config.rdzv_backend, config.rdzv_endpoint, config.run_id, **nodes, **config.rdzv_configs
    )
    return {
        "version": importlib.metadata.version("nvidia-resiliency-ext"),
        "module": launcher.__file__,
        "launch": {field.name: getattr(config, field.name) for field in dataclasses.fields(config)},
        "faults": dataclasses.asdict(config.fault_tol_cfg),
        "is_store_host": launcher._is_store_host(meeting),
        "command": [entrypoint, *arguments],
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    print(json.dumps(parsed(sys.argv[1:]), default=str))
