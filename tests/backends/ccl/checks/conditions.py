"""Runs another check under conditions that this machine may not have: `conditions.py CHECK.py ARGUMENTS`.

CPUDIST_TEST_PROGRESS=polls|naps: a core to spare for the engine's thread, or none.
CPUDIST_TEST_HOSTS=N: the ranks believe that they are spread over N machines.
CPUDIST_TEST_NUMA=0,0,1,-: each rank believes that it is in this NUMA node, or (-) in several.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from cpudist import environments
from cpudist.backends.ccl import extension, group

progress = os.environ.get("CPUDIST_TEST_PROGRESS")
if progress:
    group.cores_to_spare = lambda *_: 1 if progress == "polls" else 0
hosts = int(os.environ.get("CPUDIST_TEST_HOSTS", "1"))
place = environments.detect(os.environ).placement()
if hosts > 1:
    group.node_identity = lambda: f"host {place.rank * hosts // place.size}"
numa = os.environ.get("CPUDIST_TEST_NUMA")
if numa:
    own = numa.split(",")[place.rank]
    group.own_numa_node = lambda: None if own == "-" else int(own)

sys.argv = sys.argv[1:]
runpy.run_path(str(Path(__file__).with_name(sys.argv[0])), run_name="__main__")
if progress:
    assert extension.load().polls() == (progress == "polls")
if place.rank == 0:
    print(f"progress: {progress}, hosts: {hosts}, NUMA nodes: {numa}")
