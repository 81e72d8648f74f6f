from __future__ import annotations

import pytest

from tests.runtime.conftest import jobs
from tests.versions.unpacked import VERSIONS, python_path

__all__ = ["jobs"]

INSTALLED = "installed"
EACH = [pytest.param(version, marks=pytest.mark.slow) for version in VERSIONS]


def version_env(version: str) -> dict[str, str]:
    """Variables of a process that is to find this version of NVRx."""
    return {} if version == INSTALLED else {"PYTHONPATH": python_path(version)}
