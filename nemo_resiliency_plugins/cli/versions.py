"""``nemo-resiliency --version``: what is installed, told without importing any of it."""

from __future__ import annotations

import importlib.metadata
import platform

import typer

PACKAGES = ("nemo-resiliency-plugins", "nemo_run", "torch", "nvidia-resiliency-ext")
RUNTIME = "pip install 'nemo-resiliency-plugins[runtime]'"
"""Brings what ranks need."""


def installed(name: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def tell(wanted: bool) -> None:
    """The callback of ``--version``: prints a line for each package and for Python, and ends the command."""
    if wanted:
        for name in PACKAGES:
            typer.echo(f"{name} {installed(name) or 'is not installed'}")
        typer.echo(f"Python {platform.python_version()}")
        raise typer.Exit()
