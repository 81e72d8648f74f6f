"""A script that knows nothing of any runtime."""

from __future__ import annotations

import json
import sys
import time

time.sleep(1.5)
print(json.dumps(sys.argv[1:]))
