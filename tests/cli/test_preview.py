"""``preview``: what would be submitted, from a launch script and from a recipe."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nemo_resiliency_plugins.cli.main import app

SUBMIT = """
import sys
import nemo_run as run
from nemo_resiliency_plugins import FaultTolerancePlugin, PreemptionPlugin
from beside import NAME

def recipe(nodes=2, retries=0, packager=run.Packager(), plugins=True):
    task = run.Script("train.py", entrypoint="python", args=["--steps", "100"])
    tunnel = run.LocalTunnel(job_dir="/shared/experiments")
    executor = run.SlurmExecutor(
        account="me", nodes=nodes, ntasks_per_node=4, packager=packager, tunnel=tunnel, retries=retries
    )
    return task, executor, [FaultTolerancePlugin(), PreemptionPlugin()] if plugins else []

def of_git(plugins=True):
    return recipe(packager=run.GitArchivePackager(), plugins=plugins)

if __name__ == "__main__":
    task, executor, plugins = recipe(*map(int, sys.argv[1:]))
    run.run(task, executor=executor, plugins=plugins, name=NAME)
    print("went on")
"""


# NeMo-Run 0.11 leaves the pipes of its commands to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


SEVERAL = """
import nemo_run as run
from submit import recipe

with run.Experiment("two") as experiment:
    for name in ("prepare", "train"):
        task, executor, plugins = recipe()
        experiment.add(task, executor=executor, plugins=plugins, name=name)
    experiment.run()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("NAME = 'train'\n")
    (tmp_path / "submit.py").write_text(SUBMIT)
    return tmp_path / "submit.py"


@pytest.fixture(autouse=True)
def _beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NEMORUN_HOME", str(tmp_path / "home"))
    yield
    gc.collect()


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["preview", *map(str, arguments)])


def test_a_launch_script_is_shown_and_not_submitted(script: Path) -> None:
    done = invoke(script, "--", "3")
    assert done.exit_code == 0, done.output
    assert "# train: " in done.output
    assert "FaultTolerancePlugin: launcher.max_restarts = 3\n" in done.output
    assert "PreemptionPlugin: executor.signal = 'TERM@60'\n" in done.output
    batch = done.output.partition("# train_sbatch.sh\n")[2]
    assert "#SBATCH --nodes=3\n" in batch
    assert "#SBATCH --signal=TERM@60\n" in batch
    assert "#SBATCH --open-mode=append\n" in batch  # the log of an attempt outlives a requeue
    assert "nemo_resiliency_plugins.runtime.node python train.py --steps 100" in done.output
    assert "nrp_decide" not in done.output
    assert not (script.parent / "home").exists()


def test_an_edit_that_plugins_share_is_shown_once(script: Path) -> None:
    edits = invoke(script).output.partition("\n# ")[0].splitlines()
    told = [line.partition(": ")[2] for line in edits[1:] if not line.startswith(" ")]
    notes = [line for line in told if line.startswith("note: ")]
    assert len(told) == len(set(told))
    assert told[len(told) - len(notes) :] == notes
    assert edits[0] == f"# train: {len(told) - len(notes)} edits, {len(notes)} note{'s' * (len(notes) != 1)}"
    for change in ("executor.retries = 0", "launcher.trains = 0", "executor.setup_lines +="):
        assert f"FaultTolerancePlugin, PreemptionPlugin: {change}" in edits
    assert "FaultTolerancePlugin: launcher.max_restarts = 3" in edits
    assert sum("is not among what Packager ships" in line for line in edits) == 1


def test_of_several_tasks_each_edit_names_its_own(script: Path) -> None:
    (script.parent / "several.py").write_text(SEVERAL)
    done = invoke(script.parent / "several.py")
    assert done.exit_code == 0, done.output
    for name in ("prepare", "train"):
        assert f"\n{name}: FaultTolerancePlugin: launcher.max_restarts = 3\n" in done.output


def test_everything_holds_the_policy_and_what_the_job_is_told(script: Path) -> None:
    done = invoke(script, "--all")
    assert "nrp_decide() {" in done.output
    assert '"enable_ft_package": true' in done.output


def test_a_function_of_a_file_is_a_recipe(script: Path) -> None:
    done = invoke(f"{script}:recipe", "nodes=5")
    assert done.exit_code == 0, done.output
    assert "#SBATCH --nodes=5\n" in done.output


def test_the_recipes_of_the_package_can_be_shown(tmp_path: Path) -> None:
    done = invoke("nemo_resiliency_plugins.recipes.small_gpt:small_gpt", f"directory={tmp_path}", "steps=7")
    assert done.exit_code == 0, done.output
    assert "script is started through python -m nemo_resiliency_plugins.runtime.launch" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit.py:nothing"], "cannot be found"),
        (["submit.py:run"], "cannot be found"),
        (["submit.py:recipe", "node=3"], "unexpected keyword argument 'node'"),
        (["nemo_resiliency_plugins.recipes.small_gpt:small_gpt"], "missing a required argument: 'directory'"),
        (["no_such_module:recipe"], "cannot be found"),
        (["nowhere.py"], "is no file"),
        (["beside.py"], "submits nothing"),
        (["submit.py:recipe", "nodes"], "must read NAME=VALUE"),
        (["submit.py:of_git"], "is in none. Commit there"),
        (["submit.py:of_git", "plugins=false"], "is in none. Commit there"),
        (["submit.py:recipe", "retries=5"], "Set the number in the plugin only"),
    ],
)
def test_what_cannot_be_shown_is_2(
    script: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(script.parent)
    done = invoke(*arguments)
    assert (done.exit_code, said in done.output) == (2, True), done.output


BROKEN = {
    "unclosed.py": "import nemo_run\nx = (1,\n",
    "importing.py": "import helping\n",
    "helping.py": "\nimport no_such_thing\n",
    "missing_file.py": "from pathlib import Path\nPath('no.yaml').read_text()\n",
    "asserting.py": "assert 1 + 1 == 3\n",
    "misspelt.py": """
from nemo_resiliency_plugins import FaultTolerancePlugin

def recipe():
    return plugins()

def plugins():
    return [FaultTolerancePlugin(max_restart=3)]

if __name__ == "__main__":
    recipe()
""",
    "setting_up.py": """
import nemo_run as run
run.run("no task", executor=run.LocalExecutor())
""",
}
MISSPELT = r"TypeError: .*__init__\(\) got an unexpected keyword argument 'max_restart'"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("unclosed.py", r"SyntaxError: '\(' was never closed \(unclosed\.py:2\)"),
        ("unclosed.py:recipe", r"SyntaxError: '\(' was never closed \(\S*/unclosed\.py:2\)"),
        ("importing.py", r"ModuleNotFoundError: No .* 'no_such_thing' \(importing\.py:1, then \S*/helping\.py:2\)"),
        ("importing.py:recipe", r"ModuleNotFoundError: .* \(\S*/importing\.py:1, then \S*/helping\.py:2\)"),
        ("missing_file.py:recipe", r"FileNotFoundError: .*: 'no\.yaml' \(\S*/missing_file\.py:2\)"),
        ("asserting.py", r"AssertionError \(asserting\.py:1\)"),
        ("misspelt.py", rf"{MISSPELT} \(misspelt\.py:11, then misspelt\.py:5, then misspelt\.py:8\)"),
        ("misspelt.py:recipe", rf"{MISSPELT} \(\S*/misspelt\.py:5, then \S*/misspelt\.py:8\)"),
        ("setting_up.py", r"\w+: .* \(setting_up\.py:3\)"),
    ],
)
def test_what_goes_wrong_in_the_users_code_is_told_by_the_users_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str
) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "helping", raising=False)
    done = invoke(target)
    assert done.exit_code == 2, done.output
    assert re.fullmatch(rf"nemo-resiliency: TARGET='{target}': {said}\. Mend it there\.\n", done.output), done.output
