"""A script that knows its own options only runs under the plugins as it is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.recipes.own_script import local, script
from tests.harness import BIN, clean_env
from tests.submission import submission

STEPS_ONLY = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()
pathlib.Path("seen.json").write_text(json.dumps([options.steps, *sys.argv[1:]]))
"""


def test_an_argparse_script_with_steps_only_runs_under_fault_tolerance_and_preemption(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS_ONLY)
    plugins = [FaultTolerancePlugin(), PreemptionPlugin()]
    task, executor, plugins = script(
        str(tmp_path / "train.py"), ["--steps", "3"], executor=local(ranks=1), plugins=plugins
    )
    started = submission(task, executor, plugins, tmp_path)
    env = clean_env({**started.env, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"})
    done = subprocess.run(started.command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads((tmp_path / "seen.json").read_text()) == [3, "--steps", "3"]
