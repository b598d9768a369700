"""Jobs one after the other in one process, each on another backend than the last; nothing stays behind."""

import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import cpudist


def state() -> dict[str, object]:
    """What a job changes in this process and has to take back."""
    return {
        "environment": dict(os.environ),
        "excepthook": sys.excepthook,
        "init_process_group": dist.init_process_group,
        "default_pg_timeout": distributed_c10d.default_pg_timeout,
        "finders": [finder for finder in sys.meta_path if type(finder).__module__ == "cpudist.on_import"],
        "watches": [thread.name for thread in threading.enumerate() if thread.name == "cpudist-heartbeat"],
    }


def main() -> None:
    size, launcher = None, None
    before = state()
    for backend in ("gloo", "ccl", "gloo", "auto", "ccl"):
        world = cpudist.init(backend, timeout=60)
        assert world.backend == dist.get_backend() == ("ccl" if backend == "auto" else backend)
        assert (world.size, world.launcher) == (size or world.size, launcher or world.launcher)
        assert (world.local_rank, world.local_size, world.node_count) == (world.rank, world.size, 1)
        assert "torch._dynamo" not in sys.modules  # a second of every rank's start, for compiled models alone
        size, launcher = world.size, world.launcher
        assert os.environ["WORLD_SIZE"] == str(size)
        tensor = torch.full((3,), world.rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [size * (size + 1) / 2] * 3
        group = dist.new_group()
        dist.broadcast(tensor, src=size - 1, group=group)
        cpudist.shutdown()
        after = state()
        assert not dist.is_initialized()
        assert after == before, {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    sys.stdout.write(f"{launcher}: five jobs of {size}\n")


main()
