"""A script as people write them who set torch's variables from mpirun's: no import of cpudist anywhere."""

from __future__ import annotations

import os
import sys

import plain
import torch
import torch.distributed as dist

plain.set_variables()
dist.init_process_group("ccl")
tensor = torch.tensor(float(dist.get_rank()))
dist.all_reduce(tensor)
print(f"sum {tensor.item()} on {dist.get_backend()} over {os.environ['CCL_ATL_TRANSPORT']}")
# A model in DDP holds the group to the very end, also when the group has been destroyed.
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
dist.all_reduce(torch.ones(3_000_000), async_op=True)  # nobody waits for it; every rank must finish it all the same
if sys.argv[1] == "destroy":
    dist.destroy_process_group()
