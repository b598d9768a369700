"""collectives.py with the engine thread on or off, whatever this machine's cores would call for."""

from __future__ import annotations

import os
import runpy
import threading
from pathlib import Path

from cpudist.backends.ccl import group

progress = os.environ["CPUDIST_TEST_PROGRESS"]
group.cores_to_spare = lambda *_: 1 if progress == "thread" else 0
runpy.run_path(str(Path(__file__).with_name("collectives.py")), run_name="__main__")
names = [Path(path).read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert ("cpudist-ccl" in names) == (progress == "thread"), (names, threading.enumerate())
if os.environ["PMI_RANK"] == "0":
    print(f"progress: {progress}")
