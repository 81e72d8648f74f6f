"""Jobs that tests of one module share run side by side: most of their time is waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Job

AT_ONCE = 3
"""On two cores, more starts at a time would stretch steps beyond the short limits of the tests."""


Jobs = Mapping[str, "Future[Job]"]

ASYNC = {"async_save": "true"}
MODES: dict[str, dict[str, Any]] = {"sync": {}, "async": ASYNC}
BY_MODE = pytest.mark.parametrize("mode", MODES)
"""How checkpoints are written: ``MODES[mode]`` are fields of the configuration."""


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """The module's ``JOBS``: functions that run one in a directory, by name."""
    cases: dict[str, Callable[[Path], Job]] = request.module.JOBS
    root = tmp_path_factory.mktemp("jobs")
    with ThreadPoolExecutor(getattr(request.module, "AT_ONCE", AT_ONCE)) as pool:
        yield {name: pool.submit(case, root / name) for name, case in cases.items()}
