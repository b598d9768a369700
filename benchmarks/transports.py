"""Compare MPI with oneCCL as the carrier of messages between hosts, per collective and size.

    mpirun -f hostfile -n 4 -ppn 2 python benchmarks/transports.py [--quick]

Prints the tables of `cpudist bench collectives` for these two instead. Both are groups of the same job and take turns.
Inside a host the messages go through shared memory in both.
"""

import os
import sys

import torch.distributed as dist
from usage import asked

import cpudist
from cpudist.bench import collectives, report


def main() -> None:
    world = cpudist.init("ccl")
    groups = {name: group_over(value) for name, value in (("MPI", "mpi"), ("oneCCL", ""))}

    def progress(line: str) -> None:
        if world.rank == 0:
            print(line, file=sys.stderr, flush=True)

    found = collectives.run(world, progress, "--quick" in sys.argv, groups=groups)
    if world.rank == 0:
        print(report.tables(found))
    cpudist.shutdown()


def group_over(transport: str) -> dist.ProcessGroup:
    """Make a group with this value of CPUDIST_TRANSPORT, which is read when a group is made."""
    os.environ["CPUDIST_TRANSPORT"] = transport
    try:
        group: dist.ProcessGroup = dist.new_group(backend="ccl")
        return group
    finally:
        del os.environ["CPUDIST_TRANSPORT"]


if __name__ == "__main__":
    asked(__doc__)
    main()
