"""The loop of the README, which runs on any backend as it is, with the same losses and the same checkpoint.

mpirun -n 2 cpudist-train examples/one_program.py out
mpirun -n 2 cpudist-train --backend xla examples/one_program.py out
cpudist-train --backend xla --mesh data=4 examples/one_program.py out
"""

import sys

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cpudist

world = cpudist.init()
torch.manual_seed(0)
samples = torch.randn(640, 64)
data = TensorDataset(samples, samples[:, :8].argmax(1))
sampler = DistributedSampler(data, world.size, world.rank, shuffle=False)
loader = DataLoader(data, batch_size=32 // world.size, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
model.to(world.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model = cpudist.wrap(model)
for step, (inputs, targets) in enumerate(cpudist.batches(loader)):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    cpudist.step(optimizer)
    mean = cpudist.mean(loss)
    if world.rank == 0:
        print(f"step {step} loss {mean:.6f}", flush=True)
cpudist.save(sys.argv[1], model=model, optimizer=optimizer)
cpudist.shutdown()
