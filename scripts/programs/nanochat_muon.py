"""nanochat's optimizer, Muon and AdamW, which averages the gradients itself and divides the parameters over the ranks.

Gloo has no futures of some of its calls, so one process that computes the batches of both ranks is the reference.
"""

import os

import torch
import torch.distributed as dist
from nanochat.optim import MuonAdamW
from torch.nn import Embedding, Linear, Sequential

ranks = range(2)
if "RANK" in os.environ:
    dist.init_process_group()
    ranks = [dist.get_rank()]
torch.manual_seed(0)
model = Sequential(Embedding(64, 32), Linear(32, 32), Linear(32, 32), Linear(32, 64))
adamw = {"kind": "adamw", "lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0}
muon = {"kind": "muon", "lr": 2e-2, "momentum": 0.95, "ns_steps": 5, "beta2": 0.95, "weight_decay": 0.0}
matrices = [model[1].weight, model[2].weight]
others = [model[0].weight, model[3].weight, *(model[layer].bias for layer in (1, 2, 3))]
optimizer = MuonAdamW([{"params": others, **adamw}, {"params": matrices, **muon}])
generators = {rank: torch.Generator().manual_seed(rank) for rank in ranks}
for _ in range(6):
    model.zero_grad()
    for generator in generators.values():
        tokens = torch.randint(64, (4, 33), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        (loss / len(ranks)).backward()
        print(f"loss {loss.item():.6f}", flush=True)
    optimizer.step()
if dist.is_initialized():
    dist.destroy_process_group()
