"""Set before any test is collected."""

from __future__ import annotations

import os

# Some tests run parts of a recipe in this process, outside any job, so without cpudist's hold on accelerate, which
# would take torch_xla where that is installed. It reads this when it is imported. Jobs do not inherit it: see jobs.py.
os.environ["USE_TORCH_XLA"] = "0"
