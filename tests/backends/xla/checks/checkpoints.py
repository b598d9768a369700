"""Trains on one mesh and goes on on another: FOLDER MESH {save|load}. Prints a loss that tells the two apart."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import cpudist

folder, mesh, what = sys.argv[1:]
world = cpudist.init("xla", mesh=mesh)
from cpudist.backends.xla import checkpoint  # noqa: E402 - torch_xla: only now is the device chosen

torch.manual_seed(0 if what == "save" else 1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to(world.device)
model = cpudist.wrap(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
if what == "load":
    checkpoint.load(folder, model, optimizer)
batches = torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(0))
for batch in batches[:4] if what == "save" else batches[4:]:
    loss = torch.nn.functional.cross_entropy(model(batch.to(world.device)), batch[:, :8].argmax(1).to(world.device))
    optimizer.zero_grad()
    loss.backward()
    cpudist.step(optimizer)
if what == "save":
    checkpoint.save(folder, model, optimizer)
    dist.init_process_group("gloo", init_method="xla://")  # as the runtime's guide says for its CheckpointManager
    assert dist.get_backend() == "gloo"
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, f"{folder}.pt")
    for batch in batches[4:]:  # what whoever loads must do as well
        loss = torch.nn.functional.cross_entropy(model(batch.to(world.device)), batch[:, :8].argmax(1).to(world.device))
        optimizer.zero_grad()
        loss.backward()
        cpudist.step(optimizer)
print(f"loss {loss.item():.5f}")
cpudist.shutdown()
