"""A script as torchrun starts it, with DDP of its own: from_torchrun.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rank = dist.get_rank()

torch.manual_seed(rank)  # ranks begin with parameters of their own
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = (model(torch.full((2, 4), rank + 1.0)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

mean = loss.detach()
dist.all_reduce(mean, dist.ReduceOp.AVG)
parameters = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
lines = [f"0 of {dist.get_world_size()} on {dist.get_backend()}", float(mean), parameters]
(Path(sys.argv[1]) / str(rank)).write_text("\n".join(map(str, lines)))
dist.destroy_process_group()
