"""nanochat's optimizer, Muon and AdamW, whose ranks divide the parameters; it averages the gradients itself."""

import os

import torch
import torch.distributed as dist
from nanochat.optim import MuonAdamW

dist.init_process_group()
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64)
)
adamw = {"kind": "adamw", "lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-10, "weight_decay": 0.0}
muon = {"kind": "muon", "lr": 2e-2, "momentum": 0.95, "ns_steps": 5, "beta2": 0.95, "weight_decay": 0.0}
matrices = [p for layer in (model[1], model[2]) for p in (layer.weight,)]
others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
optimizer = MuonAdamW([{"params": others, **adamw}, {"params": matrices, **muon}])
torch.manual_seed(rank)
for _ in range(6):
    tokens = torch.randint(64, (4, 33))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
