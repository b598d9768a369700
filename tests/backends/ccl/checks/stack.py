"""DDP, ZeRO, FSDP2 and DTensor on ccl as in one process; checkpoints of FSDP2: tests/checkpoints."""

import torch
import torch.distributed as dist
from programs import leave, run_checks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import cpudist

STEPS = 3
ROWS = 12  # of the global batch: divides among 2 and 3 ranks


class Net(torch.nn.Module):
    """Sizes that divide among 2 and 3 ranks and sizes that do not, and one matrix in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(13, 7)
        self.up = torch.nn.Linear(7, 12)
        self.down = torch.nn.Linear(12, 7)
        self.norm = torch.nn.LayerNorm(7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        hidden = self.norm(hidden + self.down(torch.nn.functional.gelu(self.up(hidden))))
        return hidden @ self.words.weight.T


def batch(step: int) -> torch.Tensor:
    return torch.randint(13, (ROWS, 5), generator=torch.Generator().manual_seed(step))


def train(
    net: torch.nn.Module, rank: int, size: int, parts: int = 1, kind: type = torch.optim.AdamW, **options: object
) -> list[torch.Tensor]:
    """Norms of the global gradient; `parts`: backward passes whose gradients are added up in a step."""
    optimizer = kind(net.parameters(), lr=0.01, **options)
    norms = []
    for step in range(STEPS):
        for number, part in enumerate(batch(step).chunk(size)[rank].chunk(parts)):
            if hasattr(net, "set_requires_gradient_sync"):
                net.set_requires_gradient_sync(number == parts - 1)
            logits = net(part)
            (torch.nn.functional.cross_entropy(logits.flatten(0, 1), part.flatten()) / parts).backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        cpudist.step(optimizer)
        optimizer.zero_grad()
    return norms


def check_ddp() -> None:
    zero = {"kind": ZeroRedundancyOptimizer, "optimizer_class": torch.optim.AdamW}
    for options in ({}, zero):
        replicated = Net()
        found = train(cpudist.wrap(replicated), world.rank, world.size, **options)
        torch.testing.assert_close(found, norms, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(replicated.state_dict(), alone.state_dict(), rtol=1e-3, atol=1e-4)


def check_fsdp() -> None:
    for reshard, parts in ((True, 1), (False, 1), (True, 2)):
        sharded = Net()
        fully_shard(sharded.up, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=reshard)
        torch.testing.assert_close(train(sharded, world.rank, mesh.size(), parts), norms, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(sharded.parameters(), alone.parameters(), strict=True):
            assert isinstance(ours, DTensor)
            torch.testing.assert_close(ours.full_tensor(), theirs, rtol=1e-3, atol=1e-4)


def check_dtensor() -> None:
    """Its redistributions are functional collectives: all_gather, all_to_all, reduce_scatter and all_reduce."""
    whole = torch.randn(7, 10, generator=torch.Generator().manual_seed(1))
    places = (Shard(0), Shard(1), Replicate())
    parts = DTensor.from_local(whole, mesh, [Partial()])
    for target in places:
        torch.testing.assert_close(parts.redistribute(mesh, [target]).full_tensor(), whole * mesh.size())
        for source in places:
            placed = distribute_tensor(whole, mesh, [source])
            torch.testing.assert_close(placed.redistribute(mesh, [target]).full_tensor(), whole)


world = cpudist.init("ccl", timeout=60)
assert dist.get_backend() == "ccl"
mesh = init_device_mesh("cpu", (world.size,))
alone = Net()
norms = train(alone, 0, 1)
run_checks(globals())
leave()
