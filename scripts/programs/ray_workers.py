"""Ray Train's workers, with the backend of torch.distributed that is given."""

import sys
from pathlib import Path
from typing import Any

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def work(config: dict[str, Any]) -> None:
    import ray.train.torch
    import torch
    import torch.distributed as dist

    context = ray.train.get_context()
    assert (context.get_world_rank(), context.get_world_size()) == (dist.get_rank(), dist.get_world_size())

    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    assert dist.get_backend() == config["backend"]
    losses = ""
    for _ in range(6):
        loss = (model(torch.randn(8, 16)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += f"loss {loss.item():.6f}\n"
    Path(config["folder"], f"{dist.get_rank()}.txt").write_text(losses)


backend = sys.argv[1]
work_config = {"backend": backend, "folder": str(Path.cwd())}
workers = ScalingConfig(num_workers=2)
TorchTrainer(work, train_loop_config=work_config, torch_config=TorchConfig(backend), scaling_config=workers).fit()
for file in Path().glob("*.txt"):  # Ray keeps what its workers print
    print(file.read_text())
