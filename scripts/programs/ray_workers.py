"""Ray Train's workers, with the backend of torch.distributed that is given."""

import sys

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def work() -> None:
    import ray.train.torch
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}", flush=True)


TorchTrainer(work, torch_config=TorchConfig(sys.argv[1]), scaling_config=ScalingConfig(num_workers=2)).fit()
