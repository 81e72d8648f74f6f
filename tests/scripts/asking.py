"""Asks for hang detection: strictly first, and then as it is by default."""

from __future__ import annotations

import tiny

from nemo_resiliency_plugins import runtime
from nemo_resiliency_plugins.errors import NotWorkingError

CONFIG = runtime.FaultToleranceConfig(enable_ft_package=True)

try:
    with runtime.session(CONFIG, strict=True):
        tiny.say("strict session")
except NotWorkingError as error:
    tiny.say(f"refused: {error}")
with runtime.session(CONFIG):
    tiny.say("session")
