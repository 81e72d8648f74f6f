"""What a submission costs on the laptop: imports, planning, applying, and rendering the scripts.

Writes ``build/bench.json`` (``submission.*``; milliseconds).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nemo_run as run

from nemo_resiliency_plugins import CheckpointPlugin, FaultTolerancePlugin, PreemptionPlugin, StragglerPlugin
from tests.benchmarks import report
from tests.benchmarks.faulted import SCRIPT

NODES = (1, 1_000)
IMPORTS = {
    "package": "import nemo_resiliency_plugins",
    "nemo_run": "import nemo_run",
    "plugins": "from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin",
    "runtime": "from nemo_resiliency_plugins.runtime import session",
}


def import_ms(code: str) -> float:
    """Of a fresh interpreter, without its own start."""
    timed = f"import time; began = time.perf_counter(); {code}; print((time.perf_counter() - began) * 1e3)"
    return float(subprocess.run([sys.executable, "-c", timed], capture_output=True, check=True).stdout.split()[-1])


def parts_ms(nodes: int, root: Path) -> dict[str, float]:
    """All plugins that go together, for a training on so many nodes."""
    plugins = [FaultTolerancePlugin(), PreemptionPlugin(), CheckpointPlugin(async_save=True), StragglerPlugin()]
    task = run.Script(SCRIPT, entrypoint="python", args=["--steps", "100"])
    executor = run.SlurmExecutor(
        account="me",
        nodes=nodes,
        ntasks_per_node=8,
        tunnel=run.LocalTunnel(job_dir=str(root)),
        packager=run.Packager(),
    )
    executor.assign("experiment", str(root), "task", "task")
    plan = milliseconds(lambda: [plugin.plan(task, executor) for plugin in plugins])
    apply = milliseconds(lambda: [plugin.setup(task, executor) for plugin in plugins])
    executor.launcher.job_dir = str(root)
    render = milliseconds(lambda: executor.launcher.transform(["python", "train.py"]))
    return {"plan": plan, "apply": apply, "render": render}


def milliseconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def main() -> None:
    options = report.arguments(__doc__)
    found = {
        f"submission.import_{name}_ms": [import_ms(code) for _ in range(options.repeats)]
        for name, code in IMPORTS.items()
    }
    for nodes in NODES:
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as root:
                for part, took in parts_ms(nodes, Path(root)).items():
                    found.setdefault(f"submission.{part}_{nodes}_nodes_ms", []).append(took)
    report.show(found, {}, {})
    report.save(options.output, found, {}, {})


if __name__ == "__main__":
    main()
