"""How the command line speaks: tables without lines, so that a pipe, ``grep`` and a screen reader can follow."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

IN_A_PIPE = 4000
"""Columns of a pipe: nothing is cut or wrapped there."""


def console() -> Console:
    """Standard output; NO_COLOR and TERM are honoured by rich."""
    return Console(width=None if sys.stdout.isatty() else IN_A_PIPE, highlight=False, soft_wrap=False)


def table(*headers: str) -> Table:
    """Columns two spaces apart."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        made.add_column(header, overflow="fold")
    return made


def rows(made: Table, *cells: Any) -> None:
    """Add one row; None is an empty cell, and nothing in a cell is read as markup."""
    made.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))
