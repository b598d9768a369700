"""Runs other checks one after the other in the same processes: `conditions.py CHECK.py ARGUMENTS -- CHECK.py …`.

They run under conditions that this machine may not have:
CPUDIST_TEST_PROGRESS=polls|naps: a core to spare for the engine's thread, or none.
CPUDIST_TEST_NAP=SECONDS: how long the engine's thread sleeps between two looks, where no core is spared for it.
CPUDIST_TEST_HOSTS=N: the ranks believe that they are spread over N machines.
"""

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from cpudist import launchers
from cpudist.backends.ccl import ccl_group, extension


def with_nap(module: Any, seconds: float) -> Any:
    module.start_thread = functools.partial(module.start_thread, nap_seconds=seconds)
    return module


progress = os.environ.get("CPUDIST_TEST_PROGRESS")
if progress:
    ccl_group.cores_to_spare = lambda *_: 1 if progress == "polls" else 0
if nap := os.environ.get("CPUDIST_TEST_NAP"):
    ccl_group.load = functools.cache(lambda: with_nap(extension.load(), float(nap)))
hosts = int(os.environ.get("CPUDIST_TEST_HOSTS", "1"))
place = launchers.detect(os.environ).placement()
if hosts > 1:
    ccl_group.node_identity = lambda: f"host {place.rank * hosts // place.size}"

for check in " ".join(sys.argv[1:]).split(" -- "):
    sys.argv = check.split()
    runpy.run_path(str(Path(__file__).with_name(sys.argv[0])), run_name="__main__")
if progress:
    assert extension.load().polls() == (progress == "polls")
if place.rank == 0:
    print(f"progress: {progress}, hosts: {hosts}")
