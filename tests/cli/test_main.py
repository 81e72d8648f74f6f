"""What holds for all verbs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nemo_resiliency_plugins.cli import versions
from nemo_resiliency_plugins.cli.main import VERBS, app
from nemo_resiliency_plugins.errors import ConfigError, NotWorkingError
from tests.harness import BIN

HEAVY = {"torch", "nemo_run", "nvidia_resiliency_ext", "matplotlib", "fiddle"}


def loaded_after(*arguments: str) -> set[str]:
    """The top-level modules that are loaded when the command has come to its end."""
    code = "import sys; from nemo_resiliency_plugins.cli.main import app\n"
    code += f"try: app({arguments!r})\nexcept SystemExit: print('|', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.rpartition("|")[2].split()}


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_tells_how_it_is_used_without_loading_what_is_heavy(verb: str) -> None:
    assert not loaded_after(verb, "--help") & HEAVY


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_an_example(verb: str) -> None:
    done = CliRunner().invoke(app, [verb, "--help"])
    assert done.exit_code == 0
    assert f"Example: nemo-resiliency {verb}" in " ".join(done.output.split())


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS)])
def test_the_short_option_helps_as_the_long_one_does(verb: list[str]) -> None:
    short, long = (CliRunner().invoke(app, [*verb, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)


def test_the_versions_are_told_without_loading_what_they_are_of() -> None:
    told = dict(line.split(" ", 1) for line in CliRunner().invoke(app, ["--version"]).output.splitlines())
    names = ("nemo-resiliency-plugins", "nemo_run", "torch", "nvidia-resiliency-ext")
    assert told == {**{name: importlib.metadata.version(name) for name in names}, "Python": platform.python_version()}
    assert not loaded_after("--version") & HEAVY


def test_a_version_of_what_is_not_there_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PACKAGES", ("no-such-package",))
    assert CliRunner().invoke(app, ["--version"]).output.startswith("no-such-package is not installed\n")


@pytest.mark.parametrize("arguments", [["nonsense"], ["status"], ["status", "--nonsense", "x"], ["status", "/nowhere"]])
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("a", 1, "is bad", "Mend it."), 2, "a=1: is bad. Mend it."),
        (ConfigError("a", None, "is bad", "Mend it."), 2, "a=None: is bad. Mend it."),
        (ConfigError("--a", None, "it is needed", "Give it."), 2, "--a is missing: it is needed. Give it."),
        (NotWorkingError("off"), 1, "off"),
    ],
)
def test_an_error_of_this_package_is_a_message_and_its_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, said: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("nemo_resiliency_plugins.cli.status.located", fail)
    done = CliRunner().invoke(app, ["status", "x"])
    assert (done.exit_code, done.output) == (code, f"nemo-resiliency: {said}\n")


def test_the_shell_completes_verbs() -> None:
    env = {
        **os.environ,
        "_NEMO_RESILIENCY_COMPLETE": "complete_bash",
        "COMP_WORDS": "nemo-resiliency st",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([BIN / "nemo-resiliency"], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["status"]
