"""Never gets to its session."""

from __future__ import annotations

import time

time.sleep(600)

from nemo_resiliency_plugins import runtime  # noqa: E402

runtime.session()
