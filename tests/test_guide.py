"""The README's tables for readers of Megatron-Bridge's guide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_readme import ROOT, TEXT

[SECTION] = re.findall(r"^## For readers of .*?^## ", TEXT, flags=re.MULTILINE | re.DOTALL)
ANCHORS = re.findall(r"^\| (`[^|]+) \| (`[^|]+`) \|$", SECTION, flags=re.MULTILINE)
ANCHORS_OF_THE_GUIDE = 25


def test_every_anchor_of_the_guide_is_there_once() -> None:
    assert len(ANCHORS) == len(set(ANCHORS)) == len({there for there, _ in ANCHORS}) == ANCHORS_OF_THE_GUIDE


@pytest.mark.parametrize("path", sorted({path for _, here in ANCHORS for path in re.findall(r"`([^`]+)`", here)}))
def test_our_side_of_an_anchor_exists(path: str) -> None:
    homes = [ROOT, ROOT / "nemo_resiliency_plugins"]
    assert [home for home in homes if Path(home, path).is_file()]


def test_the_file_of_the_last_check_exists() -> None:
    [path] = re.findall(r"`python -m pytest (\S+)`", SECTION)
    assert (ROOT / path).is_file()
