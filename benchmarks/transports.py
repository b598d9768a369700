"""Compare MPI with oneCCL as the carrier of messages between hosts, per collective and size.

    mpirun -f hostfile -n 4 -ppn 2 python benchmarks/transports.py [--quick]

Prints the time of each on oneCCL, and that on MPI as a multiple of it. Both are groups of the same job and take turns.
Inside a host the messages go through shared memory in both.
"""

import os
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import cpudist
from cpudist.bench.report import median_cell, ratio_cell, table
from cpudist.bench.timing import Candidate, Turns, ratio, take_turns, timed, together
from cpudist.console import size as size_cell

SIZES = (1 << 10, 1 << 20, 25 << 20)


def main() -> None:
    world = cpudist.init("ccl")
    gloo = dist.new_group(backend="gloo")
    groups = {name: group_over(value) for name, value in (("oneCCL", ""), ("MPI", "mpi"))}
    rows = []
    for size in SIZES:
        calls = min(max((8 << 20) // size, 3), 200)
        turns = Turns(rounds=3, calls=calls, warm_up=1) if "--quick" in sys.argv else Turns(7, calls, 3)
        for name, make in COLLECTIVES.items():
            call = make(size // 4)
            candidates: dict[str, Candidate] = {
                carrier: together(timed(partial(call, group)), gloo) for carrier, group in groups.items()
            }
            timings = take_turns(candidates, turns)
            oneccl, mpi = timings["oneCCL"], timings["MPI"]
            rows.append([name, size_cell(size), median_cell(oneccl), ratio_cell(ratio(mpi, oneccl))])
            if world.rank == 0:
                print(rows[-1], file=sys.stderr, flush=True)
    if world.rank == 0:
        print(table([f"{world.size} ranks on {world.node_count} hosts", "size", "oneCCL", "MPI ÷ oneCCL"], rows))
    cpudist.shutdown()


def group_over(transport: str) -> dist.ProcessGroup:
    """Make a group with this value of CPUDIST_TRANSPORT, which is read when a group is made."""
    os.environ["CPUDIST_TRANSPORT"] = transport
    try:
        group: dist.ProcessGroup = dist.new_group(backend="ccl")
        return group
    finally:
        del os.environ["CPUDIST_TRANSPORT"]


Call = Callable[[dist.ProcessGroup], object]


def allreduce(count: int) -> Call:
    tensor = torch.zeros(count)
    return lambda group: dist.all_reduce(tensor, group=group)


def all_gather(count: int) -> Call:
    size = dist.get_world_size()
    whole, part = torch.zeros(count // size * size), torch.zeros(count // size)
    return lambda group: dist.all_gather_into_tensor(whole, part, group=group)


def reduce_scatter(count: int) -> Call:
    size = dist.get_world_size()
    whole, part = torch.zeros(count // size * size), torch.zeros(count // size)
    return lambda group: dist.reduce_scatter_tensor(part, whole, group=group)


def all_to_all(count: int) -> Call:
    size = dist.get_world_size()
    ours, theirs = torch.zeros(count // size * size), torch.zeros(count // size * size)
    return lambda group: dist.all_to_all_single(theirs, ours, group=group)


def broadcast(count: int) -> Call:
    tensor = torch.zeros(count)
    return lambda group: dist.broadcast(tensor, 0, group=group)


def send(count: int) -> Call:
    """A message from the first rank to the last, and one back."""
    tensor, last, rank = torch.zeros(count), dist.get_world_size() - 1, dist.get_rank()

    def call(group: dist.ProcessGroup) -> None:
        if rank == 0:
            dist.send(tensor, last, group=group)
            dist.recv(tensor, last, group=group)
        elif rank == last:
            dist.recv(tensor, 0, group=group)
            dist.send(tensor, 0, group=group)

    return call


COLLECTIVES: dict[str, Callable[[int], Call]] = {
    "allreduce": allreduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send and back": send,
}

if __name__ == "__main__":
    main()
