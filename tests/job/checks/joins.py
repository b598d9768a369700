"""Make the process group oneself, as scripts do; test_script_groups.py tries the other ways in one process.

joins.py BACKEND WAY: a script that knows nothing of cpudist. joins.py: all ways, each in a job of its own.
"""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

WAYS = {"ccl": ("no arguments", "address", "intel", "again", "overruled"), "gloo": ("store", "again")}

_kept: list[torch.nn.Module] = []


def use_group(backend: str, way: str) -> None:
    """Join the group in one of the ways, and let it compute."""
    rank, there = int(os.environ["RANK"]), dist.is_initialized()
    place = {"rank": rank, "world_size": int(os.environ["WORLD_SIZE"])}
    arguments: dict[str, dict[str, Any]] = {
        "no arguments": {},
        "address": {"backend": backend, "init_method": "tcp://127.0.0.1:1", **place},
        "store": {"backend": backend, "store": dist.HashStore(), **place},
        "overruled": {"backend": "nccl"},
    }
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
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    # Kept to the end of the process, as scripts do: to free a model after its gloo group has blocked once, inside torch
    # 2.13 with the GIL held.
    _kept.append(model)
    sys.stdout.write(f"rank {rank} {way}: {dist.get_backend()}, sum {tensor.item()}, there was a group: {there}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def all_ways() -> None:
    """Start a job for each way."""
    import cpudist

    for backend, ways in WAYS.items():
        for way in ways:
            cpudist.init(backend)
            use_group(backend, way)
            cpudist.shutdown()
    cpudist.init()
    use_group("gloo", "by gloo's name")
    cpudist.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        use_group(*sys.argv[1:])
    else:
        all_ways()
