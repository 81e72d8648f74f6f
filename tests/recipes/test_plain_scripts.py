"""A script that knows its own options only runs under the plugins as it is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from nemo_resiliency_plugins.recipes.own_script import local, script
from nemo_resiliency_plugins.recipes.plugin_sets import production
from tests.architecture.test_imports import loaded_after
from tests.harness import BIN, clean_env
from tests.submission import submission

SEEN = "seen.json"
STEPS_ONLY = f"""
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()
pathlib.Path("{SEEN}").write_text(json.dumps([options.steps, *sys.argv[1:]]))
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
    assert json.loads((tmp_path / SEEN).read_text()) == [3, "--steps", "3"]


def test_on_this_machine_a_slow_rank_ends_nothing_unless_asked() -> None:
    *others, straggler = script("train.py")[2]
    assert not straggler.stop_if_detected
    assert others == production()[:3]
    assert script("train.py", plugins=production())[2] == production()


def test_submitting_needs_neither_torch_nor_nvrx_and_the_ranks_load_no_nemo_run() -> None:
    without = "import sys; sys.modules['torch'] = sys.modules['nvidia_resiliency_ext'] = None"
    assert "nemo_run" in loaded_after(f"{without}; import nemo_resiliency_plugins.recipes.command_line")
    assert "nemo_run" not in loaded_after("import nemo_resiliency_plugins.recipes.scripts")
