"""Who a process is, from variables that may be odd."""

from __future__ import annotations

import pytest

from nemo_resiliency_plugins.errors import ConfigError
from nemo_resiliency_plugins.runtime.identity import Identity


def test_empty_variables_are_as_good_as_none() -> None:
    identity = Identity.from_env({"RANK": "", "WORLD_SIZE": ""})
    assert (identity.rank, identity.world_size, identity.launched) == (0, 1, False)


@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("RANK", "-1"), ("WORLD_SIZE", "2x"), ("RANK", "1.0")])
def test_what_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}='{value}': must be a whole number"):
        Identity.from_env({name: value})
