"""The level of the log, in every process of a job."""

from __future__ import annotations

import pytest

from tests.harness import python

SESSION = """
import os, sys
sys.stderr = sys.stdout
from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.runtime.log import logger
with runtime.session() as session:
    for step in session.steps(0, 1):
        pass
logger().warning("a warning")
sys.stdout.flush()
if os.fork() == 0:
    logger().error("an error of a child")
    sys.stdout.flush()
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("env", "levels"),
    [
        ({}, {"INFO", "WARNING", "ERROR"}),
        ({"NRP_LOG_LEVEL": "warning"}, {"WARNING", "ERROR"}),
        ({"LOGLEVEL": "ERROR"}, {"ERROR"}),
        ({"LOGLEVEL": "ERROR", "NRP_LOG_LEVEL": "WARNING"}, {"WARNING", "ERROR"}),
        ({"NRP_LOG_LEVEL": "nonsense"}, {"INFO", "WARNING", "ERROR"}),
    ],
)
def test_the_level_holds_in_the_session_and_in_its_children(env: dict[str, str], levels: set[str]) -> None:
    said = python(SESSION, env=env)
    assert {level for level in ("INFO", "WARNING", "ERROR") if f"[{level}]" in said} == levels
