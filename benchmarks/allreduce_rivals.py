"""Time collectives, and an allreduce also on oneCCL without cpudist's shared memory, on MPI, and in torch alone.

    mpirun -n 2 python benchmarks/allreduce_rivals.py [--quick]

Prints the table of `cpudist bench collectives` with these candidates besides. "torch alone" is torch's own backend that
does nothing: what torch takes for a call.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # noqa: F401  (registers the backend "fake")
from transports import group_over
from usage import asked

import cpudist
from cpudist.bench import collectives, report
from cpudist.bench.timing import Candidate, in_turn, timed


def main() -> None:
    world = cpudist.init("ccl")
    first = world.rank == 0

    def progress(line: str) -> None:
        if first:
            print(line, file=sys.stderr)

    found = collectives.run(world, progress, "--quick" in sys.argv, rivals())
    if first:
        print(report.tables(found))
    cpudist.shutdown()


def rivals() -> collectives.Rivals:
    """Make the groups, and return the function that makes the candidates."""
    oneccl, fake, mpi = group_over("oneccl"), dist.new_group(backend="fake"), loaded_mpi()

    def make(size: int, dtype: torch.dtype, buffers: int) -> dict[str, Candidate]:
        def all_of(call: Callable[[torch.Tensor], object]) -> Candidate:
            tensors = [torch.zeros(size // dtype.itemsize, dtype=dtype) for _ in range(buffers)]
            return timed(in_turn(partial(call, tensor) for tensor in tensors))

        made = {
            "oneCCL": all_of(partial(dist.all_reduce, group=oneccl)),
            "torch alone": all_of(partial(dist.all_reduce, group=fake)),
        }
        if mpi is not None and dtype is not torch.bfloat16:  # MPI has no such type
            made["mpi4py"] = all_of(lambda tensor: mpi.COMM_WORLD.Allreduce(mpi.IN_PLACE, tensor.numpy()))
        return made

    return make


def loaded_mpi() -> Any | None:
    """Return the module ``mpi4py.MPI`` where the job has started it; None under torchrun."""
    module = sys.modules.get("mpi4py.MPI")
    return module if module is not None and module.Is_initialized() else None


if __name__ == "__main__":
    asked(__doc__)
    main()
