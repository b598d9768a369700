"""Collectives without an end, until a rank is killed: `forever.py VICTIM SECONDS FILE`; FILE appears just before."""

# First of all, so that it may die at any moment of its start, too.
import os
import signal
import sys
import time

rank = os.getpid()
if sys.argv[1] == os.environ.get("RANK", os.environ.get("PMI_RANK")) and os.fork() == 0:
    time.sleep(float(sys.argv[2]))
    if os.getppid() == rank:  # it has not ended by itself
        open(sys.argv[3], "w").close()
        os.kill(rank, signal.SIGKILL)
    os._exit(0)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import cpudist  # noqa: E402

world = cpudist.init("ccl", timeout=30)  # under Intel MPI the others wait so long for a rank that never came
while True:
    for count in (1, 300, 70_000, 3_000_000):
        data = torch.ones(count)
        works = [dist.all_reduce(data.clone(), async_op=True) for _ in range(3)]
        dist.broadcast(data, src=world.size - 1)
        everybody = [torch.empty_like(data) for _ in range(world.size)]
        dist.all_gather(everybody, data)
        for work in works:
            work.wait()
        if world.rank == 0:
            dist.send(data, 1)
        elif world.rank == 1:
            dist.recv(data, 0)
    group = dist.new_group([0, 1])
    if world.rank < 2:
        dist.all_reduce(torch.ones(5000), group=group)
        dist.destroy_process_group(group)
