"""What becomes of the command that NeMo-Run gives for a task."""

from __future__ import annotations

import pytest

from nemo_resiliency_plugins.runtime.start_command import of_rank


@pytest.mark.parametrize(
    ("command", "stub"),
    [
        (["python", "train.py", "-x"], ["--", "train.py", "-x"]),
        (["python3", "-m", "train"], ["--", "-m", "train"]),
        (["python -m pkg.main", "train.py"], ["--", "-m", "pkg.main", "train.py"]),
    ],
)
def test_python_runs_through_the_stub(command: list[str], stub: list[str]) -> None:
    assert of_rank(command)[3:] == stub


@pytest.mark.parametrize("options", ["-u", "-X faulthandler", "-O", "-W ignore", "-B -u", "-Im"])
def test_python_with_options_of_its_own_runs_as_it_is(options: str) -> None:
    assert of_rank([f"python {options}", "train.py"]) == ["python", *options.split(), "train.py"]


def test_another_program_runs_as_it_is() -> None:
    assert of_rank(["bash", "/nemo_run/scripts/task.sh"]) == ["bash", "/nemo_run/scripts/task.sh"]
