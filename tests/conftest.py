from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # Warnings are errors in tests, except those that other people's packages raise while they are imported.
    warnings.simplefilter("ignore")
    import nemo_run  # noqa: F401
    import torch.distributed.checkpoint  # noqa: F401
