"""What goes wrong in code of the user's is told by the user's own lines, without those of what runs it."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

from nemo_resiliency_plugins.errors import ConfigError, ResiliencyError

PACKAGE = Path(__file__).parents[1]
LIBRARIES = {"site-packages", "dist-packages"}


class RunFor:
    """Around what runs code that the command line's TARGET names.

    Raises:
        ConfigError: the code has failed; this package's own errors stay as they are.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    def __enter__(self) -> None:
        """Nothing has to be prepared."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ResiliencyError):
            raise ConfigError("TARGET", self._target, _in_words(error), "Mend it there.") from error


def _in_words(error: Exception) -> str:
    lines = lines_of_the_user(error) or _lines(error)[-1:]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    what = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{what} ({', then '.join(lines)})"


def lines_of_the_user(error: Exception) -> list[str]:
    """``file:line`` of each call that led to ``error``, the outermost first, and of the text that is no Python."""
    return [line for line in _lines(error) if _is_of_the_user(line.rpartition(":")[0])]


def _lines(error: Exception) -> list[str]:
    found = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        found.append((error.filename or "?", error.lineno))
    return [f"{name}:{number}" for name, number in found]


def _is_of_the_user(name: str) -> bool:
    homes = {Path(sysconfig.get_path("stdlib")), PACKAGE}
    if sys.prefix != sys.base_prefix:  # of a virtual environment; below another one, such as /usr, may be anything
        homes.add(Path(sys.prefix))
    path = Path(name).absolute()
    installed = homes & {*path.parents} or LIBRARIES & {*path.parts}
    return not (installed or name.startswith("<"))  # <frozen runpy> is no file
