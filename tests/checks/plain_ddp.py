"""Train with torch alone, on two ranks, where nothing of Hugging Face's is installed."""

import importlib.util

import torch
import torch.distributed as dist

import cpudist

absent = ("transformers", "accelerate", "datasets", "yaml", "cloudpickle")
assert not [name for name in absent if importlib.util.find_spec(name)], "these must not be installed here"

world = cpudist.init()
torch.manual_seed(world.rank)
model = cpudist.wrap(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model(torch.randn(16, 8)).square().sum().backward()
cpudist.step(optimizer)
weights = [torch.empty(4, 8) for _ in range(world.size)]
dist.all_gather(weights, next(model.parameters()).detach())
assert all(torch.equal(one, weights[0]) for one in weights)

try:
    cpudist.notebook_launcher  # noqa: B018 - the attribute is imported when it is read
except cpudist.UserError as error:
    if world.rank == 0:
        print(error)
if world.rank == 0:
    print(f"trained on {world.backend}")
cpudist.shutdown()
