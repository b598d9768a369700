"""Two cells of a notebook on one of two nodes: `nodes.py NODE`. Rank 1 fails in both; the second cell restarts."""

import os
import sys

import cpudist


def fails() -> str:
    world = cpudist.init()
    attempt = os.environ["CPUDIST_RESTART_COUNT"]
    if world.rank == 1 and attempt == "0":
        raise ValueError("no such thing")
    import torch.distributed as dist

    dist.barrier()
    return f"ranks {world.size}, attempt {attempt}"


node = {"num_processes": 1, "num_nodes": 2, "node_rank": int(sys.argv[1]), "master_addr": "h0", "timeout": 60}
for restarts in (0, 1):
    try:
        print("gives", cpudist.notebook_launcher(fails, max_restarts=restarts, **node), flush=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        print("raises", type(error).__name__, error, flush=True)
