from __future__ import annotations

from tests.plugins.conftest import nemorun_home, task

__all__ = ["nemorun_home", "task"]
