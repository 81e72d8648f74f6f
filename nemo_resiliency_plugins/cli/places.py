"""Files and directories that the user names to be written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from nemo_resiliency_plugins.errors import ConfigError


@contextlib.contextmanager
def written_to(option: str, path: Path, remedy: str) -> Iterator[None]:
    """For what makes or writes ``path``, as ``option`` asks for.

    Raises:
        ConfigError: the operating system refuses it.
    """
    try:
        yield
    except OSError as error:
        place = "" if error.filename in (None, str(path)) else f": {error.filename}"
        rule = f"cannot be written: {error.strerror or error}{place}"
        raise ConfigError(option, str(path), rule, remedy) from error
