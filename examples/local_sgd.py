"""Average parameters every few steps instead of gradients in each: post-local SGD, by torch's own means.

    mpirun -f hostfile -n 4 -ppn 2 cpudist-train examples/local_sgd.py --every 8

A small network learns to predict the next byte of Python's standard library. For the first 100 steps DDP averages
gradients over all ranks, later over those of a host alone, and every few steps all ranks average their parameters
(Lin et al., arXiv 1808.07217). This is another algorithm than DDP: docs/slow-networks.md has its losses.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn import Embedding, Flatten, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import cpudist

EXACT_STEPS, SAMPLES, LENGTH = 100, 64, 16


def main() -> torch.nn.Module:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, help="steps between two averages (default: DDP to the end)")
    parser.add_argument("--group", type=int, help="ranks that exchange gradients in each step (default: a host's)")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    world = cpudist.init()

    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)))
    windows = text.unfold(0, LENGTH + 1, 1)
    train, held_out = windows[: len(windows) * 7 // 8], windows[len(windows) * 7 // 8 :]
    generator = torch.Generator().manual_seed(options.seed * world.size + world.rank)

    torch.manual_seed(options.seed)
    model = Sequential(Embedding(256, 32), Flatten(), Linear(32 * LENGTH, 512), ReLU(), Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    wrapped = cpudist.wrap(model)
    averager = None
    if options.every:
        group, _ = dist.new_subgroups(options.group or world.local_size)
        wrapped.register_comm_hook(PostLocalSGDState(None, group, EXACT_STEPS), post_localSGD_hook)
        averager = PeriodicModelAverager(options.every, warmup_steps=EXACT_STEPS)
    for _ in range(options.steps):
        batch = train[torch.randint(len(train), (SAMPLES,), generator=generator)]
        cross_entropy(wrapped(batch[:, :-1]), batch[:, -1]).backward()
        cpudist.step(optimizer)
        if averager is not None:  # before zero_grad: it leaves out parameters without a gradient
            averager.average_parameters(model.parameters())
        optimizer.zero_grad()
    average_parameters(iter(model.parameters()), dist.group.WORLD)  # the steps since the last average

    batch = held_out[world.rank :: world.size * 8][:16384]
    loss = cpudist.mean(cross_entropy(model(batch[:, :-1]), batch[:, -1])).item()
    if world.rank == 0:
        print(f"held-out loss {loss:.4f}")
    cpudist.shutdown()
    return model


if __name__ == "__main__":
    main()
