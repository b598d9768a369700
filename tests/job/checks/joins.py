"""A script that makes its process group itself, in one of the ways that scripts do; it knows nothing of cpudist."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

backend, way = sys.argv[1:]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ours = dist.is_initialized()

if way == "no arguments":
    dist.init_process_group()
elif way == "torchrun":
    dist.init_process_group(backend)
elif way == "by device":
    dist.init_process_group(f"cpu:{backend},cuda:nccl")
elif way == "address":
    dist.init_process_group(backend, init_method="tcp://127.0.0.1:1", rank=rank, world_size=size)
elif way == "store":
    dist.init_process_group(backend, store=dist.HashStore(), rank=rank, world_size=size)
elif way == "timeout":
    dist.init_process_group(backend, timeout=timedelta(seconds=77))
elif way == "intel":
    import oneccl_bindings_for_pytorch  # noqa: F401  # the first line of every script that Intel documents

    os.environ["RANK"] = str(os.environ.get("PMI_RANK", 0))
    os.environ["WORLD_SIZE"] = str(os.environ.get("PMI_SIZE", 1))
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    dist.init_process_group(backend=backend, init_method="env://")
elif way == "again":
    dist.init_process_group(backend)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    assert not dist.is_initialized()
    dist.init_process_group(backend)
elif way == "twice":
    dist.init_process_group(backend)
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        assert "twice" in str(error), error  # noqa: PT017
    else:
        sys.exit("the second call went through")
elif way == "other backend":
    dist.init_process_group("nccl")
elif way == "other size":
    dist.init_process_group(backend, rank=rank, world_size=size + 1)
elif way == "other rank":
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:1?rank={size - rank}&world_size={size}")
elif way == "other variables":
    os.environ["WORLD_SIZE"] = "64"
    dist.init_process_group(backend)
else:
    sys.exit(f"there is no way {way}")

tensor = torch.tensor(float(rank))
dist.all_reduce(tensor)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
sys.stdout.write(f"rank {rank}: {dist.get_backend()}, sum {tensor.item()}, there was a group: {ours}\n")
dist.destroy_process_group()
