"""Trains on batches of one shape, evaluates on another, and then trains on a third: one warning is right.

A job before it has a new shape in each of 14 steps, and is warned too, though each of its steps compiles.
"""

import contextlib
import io

import torch
import torch_xla.debug.profiler as xp

import cpudist
from cpudist import job


def start():
    world = cpudist.init("xla")
    model = cpudist.wrap(torch.nn.Linear(8, 4).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(samples):
        with xp.StepTrace("step"):
            loss = model(torch.ones(samples, 8).to(world.device)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            cpudist.step(optimizer)
        return loss

    return world, model, step


with contextlib.redirect_stderr(io.StringIO()) as said:
    _, _, step = start()
    job.require().backend.devices.synchronize()  # compiles nothing, and is no step
    for samples in range(20, 34):
        step(samples)
    late = job.require().backend.details()["steps_that_compiled_after_warm_up"]
    cpudist.shutdown()
says = "argument 0 went from 29 x 8 to 30 x 8"
print("warns too:", said.getvalue().count("compiles again") == 1 and says in said.getvalue() and late == 4)

world, model, step = start()
for _ in range(6):
    step(16)
model.eval()
model(torch.ones(5, 8).to(world.device)).sum().item()
model.train()
for samples in (16, 16, 7, 16, 7, 3):
    step(samples).item()
print(job.require().backend.details())
cpudist.shutdown()
