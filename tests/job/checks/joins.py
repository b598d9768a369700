"""Make the process group oneself, in the ways in which scripts do.

joins.py BACKEND WAY: a script that knows nothing of cpudist. joins.py: all ways, each in a job of its own.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

WAYS = {
    "ccl": ("no arguments", "torchrun", "address", "intel", "again", "timeout", "overruled"),
    "gloo": ("by device", "store", "again", "twice"),
}
CONTRADICTIONS = {
    "other backend": "the script asks for the backend nccl, but the job runs on ccl; give --backend ccl to stay on it",
    "other size": "the script asks for world size 3, but in this job it is 2",
    "other rank": "the script asks for rank ",
    "other variables": "the script asks for world size 64, but in this job it is 2",
}

_kept: list[torch.nn.Module] = []


def make_group(backend: str, way: str) -> None:
    """Call `init_process_group` in one of the ways."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, other_rank = "tcp://127.0.0.1:1", (rank + 1) % size
    arguments: dict[str, dict[str, Any]] = {
        "no arguments": {},
        "by device": {"backend": f"cpu:{backend},cuda:nccl"},
        "address": {"backend": backend, "init_method": address, "rank": rank, "world_size": size},
        "store": {"backend": backend, "store": dist.HashStore(), "rank": rank, "world_size": size},
        "timeout": {"backend": backend, "timeout": timedelta(seconds=77)},
        "overruled": {"backend": "nccl"},
        "other backend": {"backend": "nccl"},
        "other size": {"backend": backend, "rank": rank, "world_size": size + 1},
        "other rank": {"backend": backend, "init_method": f"{address}?rank={other_rank}&world_size={size}"},
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
    elif way == "other variables":
        os.environ["WORLD_SIZE"] = "64"
    dist.init_process_group(**arguments.get(way, {"backend": backend}))  # as under torchrun
    if way == "twice":
        try:
            dist.init_process_group(backend)
        except ValueError as error:
            assert "twice" in str(error), error  # noqa: PT017
        else:
            sys.exit("the second call went through")


def use_group(backend: str, way: str) -> None:
    """Join the group and let it compute."""
    rank, there = int(os.environ["RANK"]), dist.is_initialized()
    make_group(backend, way)
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
    """Start a job for each way; contradictions are errors, after which the job goes on."""
    import cpudist
    from cpudist.job import require

    for backend, ways in WAYS.items():
        for way in ways:
            cpudist.init(backend)
            use_group(backend, way)
            if way == "timeout":
                assert (require().timeout, require().store.timeout) == (77, timedelta(seconds=77))
            cpudist.shutdown()
    cpudist.init()
    use_group("gloo", "by gloo's name")
    cpudist.shutdown()
    for way, message in CONTRADICTIONS.items():
        world = cpudist.init()
        try:
            make_group("ccl", way)
        except cpudist.UserError as error:
            assert str(error).startswith(message), error  # noqa: PT017
        else:
            sys.exit(f"{way}: the call went through")
        dist.all_reduce(torch.ones(1))
        sys.stdout.write(f"rank {world.rank} {way}: refused\n")
        sys.stdout.flush()
        cpudist.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        use_group(*sys.argv[1:])
    else:
        all_ways()
