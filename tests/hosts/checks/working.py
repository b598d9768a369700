"""A job to break: trains a model in DDP, after each rank has left a file: it is in the middle of its work.

Its ranks write to FOLDER/stderr: Hydra now and then ends before it has passed on what they wrote last.

python working.py FOLDER TIMEOUT   until a rank finds FOLDER/end, or WHAT-RANK; for each WHAT see `_obey`

With WORKING_SAVES it saves checkpoints, and goes on from the newest one. WORKING_STALL is `cpudist.init`'s `stall`.
"""

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import cpudist
from cpudist.waiting import poll

RANKS = 4


def _obey(folder: Path, rank: int) -> None:
    def ordered(what: str) -> bool:
        return (folder / f"{what}-{rank}").exists()

    if ordered("raise"):
        raise ValueError("the reason")
    if ordered("full"):
        Path("/dev/full").write_text("a checkpoint")
    if ordered("allocate"):
        torch.ones(1 << 30)
    if ordered("gil"):
        ctypes.PyDLL(None).sleep(1000)
    if ordered("child"):
        (folder / f"child-{rank}").unlink()
        subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True, close_fds=True)
    while ordered("stuck"):
        time.sleep(0.1)


def main(folder: Path, timeout: float) -> None:
    os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), 2)
    # On a busy machine ranks start further apart than the timeout, which is to bound the job's end.
    (folder / f"started-{os.uname().nodename}-{os.getpid()}").touch()
    assert poll(lambda: len(list(folder.glob("started-*"))) >= RANKS, 100.0)
    stall = float(os.environ.get("WORKING_STALL", "0")) or None
    world = cpudist.init(os.environ.get("WORKING_BACKEND", "ccl"), timeout=timeout, stall=stall)
    model = torch.nn.Linear(1, 1, bias=False)
    trained = cpudist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    checkpoints = cpudist.Checkpoints(folder / "out") if "WORKING_SAVES" in os.environ else None
    step = checkpoints.restore(model=model) if checkpoints else 0
    for _ in range(2):  # they are connected, and DDP has sorted its buckets
        trained(torch.zeros(1)).backward()
    optimizer.step()  # stalls count from the first step on
    (folder / f"ready-{world.rank}").write_text(str(os.getpid()))
    while True:
        _obey(folder, world.rank)
        if (folder / f"leave-{world.rank}").exists():
            break
        trained(torch.tensor([float((folder / "end").exists())])).backward()
        if model.weight.grad.item():  # the mean over the ranks: one of them has found the file
            break
        optimizer.step()
        step += 1
        if checkpoints and step % 20 == 0:
            checkpoints.save(step, model=model)
        time.sleep(0.02)
    cpudist.shutdown()
    if world.rank == 0:
        print("finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
