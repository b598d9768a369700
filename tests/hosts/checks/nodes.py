"""A notebook's cells on one of two nodes, whose number is the argument."""

from __future__ import annotations

import sys

import cpudist


def fails() -> None:
    world = cpudist.init()
    if world.rank == 1:
        raise ValueError("no such thing")
    import torch.distributed as dist

    dist.barrier()


def main(node: int) -> None:
    options = {"num_processes": 1, "num_nodes": 2, "node_rank": node, "master_addr": "h0", "timeout": 60}
    try:
        cpudist.notebook_launcher(fails, **options)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        print(type(error).__name__, error)


if __name__ == "__main__":
    main(int(sys.argv[1]))
