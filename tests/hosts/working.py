"""A job to break: reduces again and again, after each rank has left a file: it is in the middle of its work.

Its ranks write to FOLDER/stderr: Hydra now and then ends before it has passed on what they wrote last.

python working.py FOLDER TIMEOUT   until a rank finds FOLDER/raise-RANK, full-RANK, allocate-RANK, stuck-RANK or end
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import cpudist


def main(folder: Path, timeout: float) -> None:
    os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), 2)
    world = cpudist.init(os.environ.get("WORKING_BACKEND", "ccl"), timeout=timeout)
    numbers = torch.ones(1 << 16)
    dist.all_reduce(numbers, dist.ReduceOp.AVG)  # they are connected
    (folder / f"ready-{world.rank}").write_text(str(os.getpid()))
    while True:
        if (folder / f"raise-{world.rank}").exists():
            raise ValueError("the reason")
        if (folder / f"full-{world.rank}").exists():
            Path("/dev/full").write_text("a checkpoint")
        if (folder / f"allocate-{world.rank}").exists():
            numbers = torch.ones(1 << 30)
        while (folder / f"stuck-{world.rank}").exists():
            time.sleep(0.1)
        flag = torch.tensor([float((folder / "end").exists())])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if flag.item():
            break
        dist.all_reduce(numbers, dist.ReduceOp.AVG)
        time.sleep(0.02)
    assert torch.equal(numbers, torch.ones(1 << 16))
    cpudist.shutdown()
    if world.rank == 0:
        print("finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
