"""What is there for TPUs and GPUs, as far as one CPU process can try it: the device is made up, the runtime is not."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch_xla import runtime

import cpudist
from cpudist import job
from cpudist.backends.xla import backend
from cpudist.errors import UserError

if sys.argv[1] == "hosts":
    world = cpudist.init("xla", mesh="data=2")
    model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
    runtime.process_count = lambda: 2
    try:
        model(torch.ones(4, 4).to(world.device))
    except UserError as error:
        print("refused:", error)
    cpudist.shutdown()
else:  # the runtime's own process group, as where it connects the devices
    backend._agree_on_host = lambda *_: None
    world = cpudist.init("xla")
    print(torch.distributed.get_backend(), type(torch.distributed.group.WORLD).__name__)
    model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4).to(world.device)).square().mean().backward()
    before = next(model.parameters()).detach().cpu()
    cpudist.step(optimizer)
    print("moved:", not torch.equal(before, next(model.parameters()).detach().cpu()), job.require().backend.transport())
    cpudist.shutdown()
    try:
        backend._join_runtime(replace(world, size=3))
    except UserError as error:
        print("refused:", error)
