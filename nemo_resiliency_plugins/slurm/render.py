"""Rendering of ``slurm_templates``: every value goes through a quoting filter, an undefined name is an error."""

from __future__ import annotations

import functools
import importlib.resources
import shlex
from typing import Any

import jinja2

TEMPLATES = "nemo_resiliency_plugins.slurm_templates"


@functools.cache
def environment() -> jinja2.Environment:
    """The jinja environment of the templates; ``quote`` makes one shell word, ``join`` a command line."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    made.filters["quote"] = lambda value: shlex.quote(str(value))
    made.filters["command"] = lambda words: shlex.join(map(str, words))
    return made


def render(template: str, **values: Any) -> str:
    """Fill ``template``, the name of a file in ``slurm_templates``.

    Raises:
        jinja2.UndefinedError: the template uses a value that was not given.
    """
    return environment().get_template(template).render(**values)


def _source(name: str) -> str:
    return importlib.resources.files(TEMPLATES).joinpath(name).read_text()
