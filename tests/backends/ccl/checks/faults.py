"""One rank misbehaves: `faults.py late|killed|raises|caught`. The others must hear of it and end."""

from __future__ import annotations

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

import cpudist
from cpudist import job


def main(fault: str) -> None:
    world = cpudist.init("ccl", timeout=60)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    if fault in ("late", "caught"):
        job.require().set_timeout(3)
    if world.rank == 1:
        if fault == "raises":
            raise ValueError("rank 1 has had enough")
        if fault == "killed":
            print("rank 1 kills itself", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    try:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
    except dist.DistBackendError as error:
        if fault != "caught":
            raise
        print(f"caught: {error}", flush=True)
        try:
            dist.barrier()
        except dist.DistBackendError as again:
            print(f"again: {again}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
