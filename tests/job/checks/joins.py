"""Make the process group oneself, as scripts do; test_options_and_groups.py tries other ways in one process.

joins.py BACKEND WAY: a script that knows nothing of cpudist. joins.py: one job after the other, each on another backend
than the last and joined in another way; nothing stays behind.
"""

import os
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

JOBS = [("gloo", "again"), ("ccl", "no arguments"), ("auto", "by gloo's name"), ("ccl", "again"), ("ccl", "intel")]

_kept: list[torch.nn.Module] = []


def use_group(backend: str, way: str) -> tuple[str, float, bool]:
    """Join the group in one of the ways, and let it compute; return its backend, a sum and whether it was there."""
    rank, there = int(os.environ["RANK"]), dist.is_initialized()
    arguments: dict[str, dict[str, Any]] = {"no arguments": {}, "by gloo's name": {"backend": "gloo"}}
    if way == "intel":
        import oneccl_bindings_for_pytorch  # noqa: F401  # the first line of every script that Intel documents

        os.environ["RANK"] = str(os.environ.get("PMI_RANK", 0))
        os.environ["WORLD_SIZE"] = str(os.environ.get("PMI_SIZE", 1))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
        arguments[way] = {"backend": backend, "init_method": "env://"}
    elif way == "again":
        dist.init_process_group(backend)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        assert not dist.is_initialized()
    dist.init_process_group(**arguments.get(way, {"backend": backend}))  # as under torchrun
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=dist.get_world_size() - 1, group=dist.new_group())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    # Kept to the end of the process, as scripts do: to free a model after its gloo group has blocked once, inside torch
    # 2.13 with the GIL held.
    _kept.append(model)
    joined = dist.get_backend(), tensor.item(), there
    dist.destroy_process_group()
    return joined


def state() -> dict[str, object]:
    """Return what a job changes in this process and has to take back."""
    return {
        "environment": dict(os.environ),
        "excepthook": sys.excepthook,
        "init_process_group": dist.init_process_group,
        "default_pg_timeout": distributed_c10d.default_pg_timeout,
        "finders": [finder for finder in sys.meta_path if type(finder).__module__ == "cpudist.patching.on_import"],
        "watches": [thread.name for thread in threading.enumerate() if thread.name == "cpudist-heartbeat"],
    }


def join_in_turn() -> None:
    """Start a job for each way, and join it."""
    import cpudist

    before = state()
    for backend, way in JOBS:
        if way == "intel" and "PMI_RANK" not in os.environ:
            continue
        world = cpudist.init(backend, timeout=60)
        assert _kept or "torch._dynamo" not in sys.modules, "only DDP imports it, in a second of each rank"
        assert world.backend == dist.get_backend() == ("ccl" if backend == "auto" else backend)
        assert (world.local_rank, world.local_size, world.node_count) == (world.rank, world.size, 1)
        assert os.environ["WORLD_SIZE"] == str(world.size)
        assert use_group(world.backend, way) == (world.backend, world.size * (world.size - 1) / 2, True), way
        cpudist.shutdown()
        after = state()
        assert not dist.is_initialized()
        assert after == before, {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    sys.stdout.write(f"{world.launcher}: jobs of {world.size}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write("{}, sum {}, there was a group: {}\n".format(*use_group(*sys.argv[1:])))
    else:
        join_in_turn()
