"""The lines of docs/moving.md that replace Horovod's and torchrun's: moved.py FOLDER horovod|torchrun."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import cpudist

folder, kind = Path(sys.argv[1]), sys.argv[2]
if kind == "horovod":
    world = cpudist.init()
    rank, local_rank, size = world.rank, world.local_rank, world.size
else:
    dist.init_process_group()
    rank, local_rank, size = dist.get_rank(), 0, dist.get_world_size()

torch.manual_seed(rank)  # ranks begin with parameters of their own
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = cpudist.wrap(model) if kind == "horovod" else DistributedDataParallel(model)
for _ in range(3):
    loss = (model(torch.full((2, 4), rank + 1.0)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    if kind == "horovod":
        cpudist.step(optimizer)
    else:
        optimizer.step()

if kind == "horovod":
    mean = cpudist.mean(loss)
else:
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
parameters = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
lines = [f"{local_rank} of {size} on {dist.get_backend()}", float(mean), parameters]
(folder / str(rank)).write_text("\n".join(map(str, lines)))
if kind == "horovod":
    cpudist.shutdown()
else:
    dist.destroy_process_group()
