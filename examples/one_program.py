"""One program for ccl, gloo and xla: the same model, the same steps, the same losses, whatever it runs on.

    mpirun -n 2 python examples/one_program.py --backend ccl
    mpirun -n 2 python examples/one_program.py --backend xla
    python examples/one_program.py --backend xla --mesh data=4

Nothing below names a backend: `world.device` says where tensors belong, `wrap` and `step` do what the backend needs.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

import cpudist


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of noise on any backend.")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--mesh", help="with --backend xla, e.g. data=4")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="samples of each step, over all ranks")
    arguments = parser.parse_args()
    options = {"mesh": arguments.mesh} if arguments.mesh else {}
    world = cpudist.init(arguments.backend, **options)

    torch.manual_seed(world.rank)  # wrap lets all ranks begin with rank 0's parameters
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 128),
        torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 8),
    ).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = cpudist.wrap(model)

    batches = torch.Generator().manual_seed(0)
    for step in range(arguments.steps):
        inputs = torch.randn(arguments.batch, 64, generator=batches)
        targets = inputs[:, :8].argmax(1)
        mine = slice(world.rank, None, world.size)
        outputs = model(inputs[mine].to(world.device))
        loss = torch.nn.functional.cross_entropy(outputs, targets[mine].to(world.device))
        optimizer.zero_grad()
        loss.backward()
        cpudist.step(optimizer)

        mean = loss.detach().cpu()
        dist.all_reduce(mean)
        if world.rank == 0:
            print(f"step {step} loss {mean.item() / world.size:.6f}", flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
