"""Ways to leave a job: `leaving.py send|fork|any_source`."""

from __future__ import annotations

import os
import sys
import time

import plain
import torch
import torch.distributed as dist

import cpudist


def send() -> None:
    """Rank 0 has left before rank 1 asks for what it sent, which is too large to be underway already."""
    world = cpudist.init("ccl", timeout=20)
    if world.rank == 0:
        dist.isend(torch.ones(10_000_000), 1)
    elif world.rank == 1:
        time.sleep(1)
        tensor = torch.zeros(10_000_000)
        dist.recv(tensor, 0)
        assert tensor.sum() == 10_000_000
        print("received")
    cpudist.shutdown()


def fork() -> None:
    """A child that ends as any program does, and one that raises: the parent's job goes on."""
    world = cpudist.init("ccl", timeout=20)
    dist.all_reduce(torch.ones(3))
    for fail in (False, True):
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(torch.ones(3))
            except dist.DistBackendError as error:
                print(f"child: {error}", flush=True)
            if fail:
                raise RuntimeError("the child's own")
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == (1 if fail else 7), status
        tensor = torch.ones(3_000_000)
        dist.all_reduce(tensor)
        assert tensor[-1] == world.size
    cpudist.shutdown()
    print("parent left")


def any_source() -> None:
    """A script that knows torch alone. A receive from any source listens to peers that never send."""
    plain.set_variables()
    dist.init_process_group("ccl")
    tensor = torch.zeros(3)
    if dist.get_rank() == 0:
        assert dist.recv(tensor) == 1
    elif dist.get_rank() == 1:
        dist.send(torch.ones(3), 0)
    dist.barrier()
    dist.destroy_process_group()
    print("left", flush=True)


if __name__ == "__main__":
    {"send": send, "fork": fork, "any_source": any_source}[sys.argv[1]]()
