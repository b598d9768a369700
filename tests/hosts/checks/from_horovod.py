"""The lines of docs/moving.md that replace Horovod's: from_horovod.py FOLDER."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

import cpudist

world = cpudist.init()
rank, local_rank, size = world.rank, world.local_rank, world.size

torch.manual_seed(rank)  # ranks begin with parameters of their own
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = cpudist.wrap(model)
for _ in range(3):
    loss = (model(torch.full((2, 4), rank + 1.0)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    cpudist.step(optimizer)

mean = cpudist.mean(loss)
parameters = torch.nn.utils.parameters_to_vector(model.parameters()).tolist()
lines = [f"{local_rank} of {size} on {dist.get_backend()}", float(mean), parameters]
(Path(sys.argv[1]) / str(rank)).write_text("\n".join(map(str, lines)))
cpudist.shutdown()
