from __future__ import annotations

import pytest

from nemo_resiliency_plugins.errors import UnsupportedError
from nemo_resiliency_plugins.integrations import versions


@pytest.mark.parametrize("version", ["2.5.5", "2.6.0.dev1", "3.0"])
def test_versions_that_were_tried_and_newer_ones_pass(version: str) -> None:
    versions.require("lightning", version, versions.LIGHTNING)


@pytest.mark.parametrize("version", ["2.4.0", "2.5.4"])
def test_an_older_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedError, match=r"Install 2\.5\.5 or later"):
        versions.require("lightning", version, versions.LIGHTNING)
