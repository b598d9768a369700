"""Trains on batches of one shape, evaluates on another, and then trains on a third: one warning is right."""

from __future__ import annotations

import torch

import cpudist
from cpudist import job

world = cpudist.init("xla")
model = cpudist.wrap(torch.nn.Linear(8, 4).to(world.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(samples):
    loss = model(torch.ones(samples, 8).to(world.device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    cpudist.step(optimizer)
    return loss


for _ in range(6):
    step(16)
model.eval()
model(torch.ones(5, 8).to(world.device)).sum().item()
model.train()
for samples in (16, 16, 7, 16, 7, 3):
    step(samples).item()
print(job.require().backend.details())
cpudist.shutdown()
