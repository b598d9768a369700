"""One rank misbehaves: `faults.py late|killed|raises`. The others must hear of it and end."""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

import cpudist
from cpudist import job

fault = sys.argv[1]
world = cpudist.init("ccl", timeout=60)
tensor = torch.ones(1000)
dist.all_reduce(tensor)
if fault == "late":
    job.require().set_timeout(3)
if world.rank == 1:
    if fault == "raises":
        raise ValueError("rank 1 has had enough")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
dist.all_reduce(tensor)
