"""What a rank finds on the device of its backend, beside training."""

import torch

import cpudist
from cpudist import job

world = cpudist.init()
inputs, text = next(iter(cpudist.batches([(torch.ones(2, 4), "text")])))
model = torch.nn.Sequential(torch.nn.Linear(4, 4)).to(world.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[0].register_forward_hook(lambda module, args, output: print("computed in", output.dtype, flush=True))
model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
model = cpudist.wrap(model)
print(world.backend, inputs.device, text, model(inputs.to(world.device)).dtype, flush=True)
backend = job.require().backend
backend.devices.set_random_state(backend.devices.random_state())
found = backend.details()
print(torch.distributed.get_backend(), backend.transport(), found["devices"], found.get("gradients"), flush=True)
