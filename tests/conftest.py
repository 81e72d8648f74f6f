from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # torch 2.13 warns at import about the pynvml that NVRx 0.4.1 brings.
    config.addinivalue_line("filterwarnings", "ignore:The pynvml package is deprecated:FutureWarning")
