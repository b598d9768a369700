"""DDP as the runtime's documentation has it, over many parameters: by how much the process grows, in its models."""

import resource

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel

LAYERS, WIDTH = 12, 1024


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


dist.init_process_group("xla", init_method="xla://")
torch.manual_seed(dist.get_rank())
layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
model = torch.nn.Sequential(*layers).to("xla")
model = DistributedDataParallel(model, bucket_cap_mb=200)  # one bucket
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch_xla.sync(wait=True)
before = peak()
for _ in range(2):
    optimizer.zero_grad(set_to_none=False)  # writes into the views
    model(torch.ones(2, WIDTH, device="xla")).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and so does this
    optimizer.step()
    torch_xla.sync(wait=True)
size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
print(f"grew by {(peak() - before) / size:.1f} models", flush=True)
