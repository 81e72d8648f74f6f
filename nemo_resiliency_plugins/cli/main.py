"""``nemo-resiliency``: exit code 0 is fine, 1 a problem was found, 2 wrong usage."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nemo_resiliency_plugins.cli import versions
from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError

VERBS = (
    "preview",
    "doctor",
    "status",
    "report",
    "faults",
    "sbatch",
    "demo",
)
"""Each is the function of its name in the module of its name, which is loaded when the verb is used."""
SETTINGS = {"help_option_names": ["-h", "--help"]}


class Verbs(TyperGroup):
    """Finds the verbs, and turns the errors of this package into a message and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = getattr(importlib.import_module(f"nemo_resiliency_plugins.cli.{cmd_name}"), cmd_name)
        own = typer.Typer(add_completion=False, rich_markup_mode=None)
        own.command(cmd_name, context_settings=SETTINGS)(verb)
        return typer.main.get_command(own)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ResiliencyError as error:
            typer.echo(f"nemo-resiliency: {_told(error)}", err=True)
            raise typer.Exit(error.exit_code) from error


def _told(error: ResiliencyError) -> str:
    """Of an option that was not given there is no value to show."""
    if isinstance(error, ConfigError) and error.value is None and error.field.startswith("--"):
        return f"{error.field} is missing: {error.rule}. {error.remedy}"
    return str(error)


app = typer.Typer(
    cls=Verbs,
    context_settings=SETTINGS,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=versions.tell, is_eager=True, help="show versions, and exit")
    ] = False,
) -> None:
    """Resiliency for NeMo-Run training jobs. Exit code: 0 fine, 1 a problem was found, 2 wrong usage."""
