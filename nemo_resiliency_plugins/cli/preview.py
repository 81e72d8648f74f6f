"""``nemo-resiliency preview``: what a launch script or a recipe would submit, without submitting it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nemo_resiliency_plugins.cli.users_code import RunFor, lines_of_the_user
from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.report.words import counted

if TYPE_CHECKING:
    from nemo_resiliency_plugins.plugins.previewing import Preview

SHORT = ("_sbatch.sh", ".sh")
POLICY = "retry_policy.sh"


def preview(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="a launch script; or FILE:FUNCTION or MODULE:FUNCTION of a recipe")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="of the script; NAME=VALUE of a function")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="show the retry policy and configuration files too")
    ] = False,
) -> None:
    """What the plugins change, edit by edit, and the batch and node scripts. Nothing is submitted.

    Example: nemo-resiliency preview submit.py -- --nodes 4
    """
    given = list(arguments or [])
    with _importable(Path.cwd()), RunFor(target):
        found = _of_function(target, given) if ":" in target else _of_script(Path(target), given)
    if not found:
        rule = "submits nothing: no run.run() and no Experiment.run() was reached"
        raise ConfigError("TARGET", target, rule, "Name a recipe that returns (task, executor, plugins).")
    for each in found:
        for line in _lines(each, everything=everything):
            typer.echo(line)


def _of_script(path: Path, arguments: list[str]) -> list[Preview]:
    from nemo_resiliency_plugins.plugins.previewing import previews

    if not path.is_file():
        raise ConfigError("TARGET", str(path), "is no file", "Name a launch script, or MODULE:FUNCTION.")

    def launch() -> None:
        before = sys.argv
        sys.argv = [str(path), *arguments]
        try:
            with _importable(path.resolve().parent), contextlib.suppress(SystemExit):
                runpy.run_path(str(path), run_name="__main__")
        finally:
            sys.argv = before

    return previews(launch)


def _of_function(target: str, arguments: list[str]) -> list[Preview]:
    from nemo_resiliency_plugins.plugins.previewing import preview_of

    home, _, name = target.rpartition(":")
    function = _function(home, name)
    given = dict(_named(each) for each in arguments)
    signature = inspect.signature(function)
    try:
        signature.bind(**given)
    except TypeError as error:
        rule = f"does not fit {target}{signature}: {error}"
        raise ConfigError("ARGUMENT", " ".join(arguments) or None, rule, "Give NAME=VALUE, such as nodes=4.") from None
    made = function(**given)
    if not (isinstance(made, tuple) and len(made) == 3):
        rule = f"returned {type(made).__name__}"
        raise ConfigError("TARGET", target, rule, "A recipe returns (task, executor, plugins).")
    return preview_of(*made)


def _function(home: str, name: str) -> Callable[..., Any]:
    try:
        module = _module(home)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        if lines_of_the_user(error):
            raise
        raise ConfigError("TARGET", f"{home}:{name}", f"cannot be found: {error}", "Check the name.") from error
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        rule = f"cannot be found: {home} has no such function"
        raise ConfigError("TARGET", f"{home}:{name}", rule, "Check the name.")
    return found


def _module(home: str) -> types.ModuleType:
    if not home.endswith(".py"):
        return importlib.import_module(home)
    spec = importlib.util.spec_from_file_location(Path(home).stem, home)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named(argument: str) -> tuple[str, Any]:
    name, equals, value = argument.partition("=")
    if not equals:
        raise ConfigError("ARGUMENT", argument, "must read NAME=VALUE", "For example nodes=4.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _lines(found: Preview, *, everything: bool) -> Iterator[str]:
    yield f"# {found.title}: {counted(len(found.edits), 'edit')}, {counted(len(found.notes), 'note')}"
    yield from found.edits or ["no plugin of this package changes anything"]
    yield from found.notes
    for name, text in found.files.items():
        if everything or (name.endswith(SHORT) and not name.endswith(POLICY)):
            yield f"\n# {name}\n{text.rstrip()}"


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
