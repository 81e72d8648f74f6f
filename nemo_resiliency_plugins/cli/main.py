"""``nemo-resiliency``: exit code 0 is fine, 1 a problem was found, 2 wrong usage."""

from __future__ import annotations

import typer

from nemo_resiliency_plugins.cli.demo import demo
from nemo_resiliency_plugins.cli.sbatch import sbatch

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
app.command()(demo)
app.command()(sbatch)


@app.callback()
def root() -> None:
    """Resiliency for NeMo-Run training jobs."""
