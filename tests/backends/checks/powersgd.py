"""PowerSGD with several buckets leaves the ranks' parameters equal, at its rank: `powersgd.py BACKEND`.

Its second collective of a bucket is called in a callback of the first, while the backward pass goes on.
"""

import sys

import torch
import torch.distributed as dist

import cpudist
from cpudist import job

STEPS = 40  # PowerSGD begins after the tenth

world = cpudist.init(sys.argv[1], timeout=60)
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(400, 400) for _ in range(12)])
wrapped = cpudist.wrap(model, bucket_cap_mb=1)
job.require().backend.compress(wrapped, "powersgd:2")  # as between hosts
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
torch.manual_seed(world.rank)
for _ in range(STEPS):
    wrapped(torch.randn(32, 400)).square().mean().backward()
    cpudist.step(optimizer)
    optimizer.zero_grad()
lowest = torch.stack([parameter.double().sum() for parameter in model.parameters()])
highest = lowest.clone()
dist.all_reduce(lowest, dist.ReduceOp.MIN)
dist.all_reduce(highest, dist.ReduceOp.MAX)
assert torch.equal(lowest, highest)
before, after = job.require().backend.compressed_bytes()
assert before / after == (400 * 400 + 400) / (2 * (400 + 400) + 400), "two factors of rank 2 for each matrix"
cpudist.shutdown()
