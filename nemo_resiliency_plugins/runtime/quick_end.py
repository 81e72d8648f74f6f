"""The end of a failed rank without the search for garbage in all that its libraries have loaded: 1 s with torch."""

from __future__ import annotations

import contextlib
import gc
import io

FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def spare_the_search() -> None:
    """The last hook of the exit. What is only part of a cycle is not taken down any more.

    Python promises that to nobody, but a file there would lose what it has not written yet.
    """
    for each in gc.get_objects():
        if issubclass(type(each), FILES):  # isinstance would ask a proxy for its class
            with contextlib.suppress(OSError, ValueError):
                each.flush()
    gc.freeze()
