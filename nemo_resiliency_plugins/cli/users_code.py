"""What goes wrong in code of the user's is told by the user's own lines, without those of what runs it."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import nemo_resiliency_plugins
from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError

LIBRARIES = {"site-packages", "dist-packages"}


@contextlib.contextmanager
def run_for(target: str) -> Iterator[None]:
    """For what runs code that the command line's TARGET names.

    Raises:
        ConfigError: the code has failed; those that it raises itself stay as they are.
    """
    try:
        yield
    except ResiliencyError:
        raise
    except Exception as error:
        lines = lines_of_the_user(error) or _lines(error)[-1:]
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        what = f"{type(error).__name__}: {message}" if message else type(error).__name__
        rule = f"{what} ({', then '.join(lines)})"
        raise ConfigError("TARGET", target, rule, "Mend it there.") from error


def lines_of_the_user(error: Exception) -> list[str]:
    """``file:line`` of each call that led to ``error``, the outermost first, and of the text that is no Python."""
    return [line for line in _lines(error) if _is_of_the_user(line.rpartition(":")[0])]


def _lines(error: Exception) -> list[str]:
    found = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        found.append((error.filename or "?", error.lineno))
    return [f"{name}:{number}" for name, number in found]


def _is_of_the_user(name: str) -> bool:
    homes = {Path(sysconfig.get_path("stdlib")), Path(nemo_resiliency_plugins.__file__).parent}
    if sys.prefix != sys.base_prefix:  # of a virtual environment; below another one, such as /usr, may be anything
        homes.add(Path(sys.prefix))
    path = Path(name).absolute()
    installed = homes & {*path.parents} or LIBRARIES & {*path.parts}
    return not (installed or name.startswith("<"))  # <frozen runpy> is no file
