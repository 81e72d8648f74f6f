from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.slurm.testbed import Cluster, TestbedError

ROOTS = Path("/tmp")
PREFIX = "nrp-slurm-"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Slurm cluster of the nodes n1, n2 and n3, started once; after each test its jobs are cancelled.

    ``NRP_SLURM_ROOT`` names one that is already up (``python -m tests.slurm.testbed up``), which then stays up.
    With ``NRP_REQUIRE_SLURM=1`` a cluster that cannot be started fails the tests instead of skipping them.
    """
    existing = os.environ.get("NRP_SLURM_ROOT")
    if existing is not None:
        yield Cluster(Path(existing))
        return
    cluster = Cluster(ROOTS / f"{PREFIX}{os.getpid()}")
    reason = _start(cluster)
    if reason and os.environ.get("NRP_REQUIRE_SLURM") == "1":
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    try:
        yield cluster
    finally:
        cluster.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # NeMo-Run 0.11 leaves the pipes of its commands to the garbage collector.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    gc.collect()  # the pipes that NeMo-Run leaves would else be reported when pytest shuts down
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").settle()


def _start(cluster: Cluster) -> str:
    """Why there is no cluster; empty when it is up."""
    try:
        _end_abandoned()
        cluster.start()
    except TestbedError as error:
        return f"no Slurm cluster: {error}"
    return ""


def _end_abandoned() -> None:
    """End the clusters of test runs that were killed."""
    for root in ROOTS.glob(f"{PREFIX}*"):
        owner = root.name.removeprefix(PREFIX)
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            Cluster(root).stop()
