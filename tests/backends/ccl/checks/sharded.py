"""FSDP2, tensor parallelism and DTensor on ccl: the same results as on one process."""

from __future__ import annotations

import copy

import torch
from program import leave
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

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


def train(net: torch.nn.Module, rank: int, size: int, parts: int = 1) -> list[torch.Tensor]:
    """Norms of the global gradient; `parts`: backward passes whose gradients are added up in a step."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    norms = []
    for step in range(STEPS):
        for number, part in enumerate(batch(step).chunk(size)[rank].chunk(parts)):
            if hasattr(net, "set_requires_gradient_sync"):
                net.set_requires_gradient_sync(number == parts - 1)
            logits = net(part)
            (torch.nn.functional.cross_entropy(logits.flatten(0, 1), part.flatten()) / parts).backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        optimizer.step()
        optimizer.zero_grad()
    return norms


def check_fsdp(mesh: DeviceMesh, alone: Net, norms: list[torch.Tensor], rank: int) -> None:
    for reshard, parts in ((True, 1), (False, 1), (True, 2)):
        sharded = Net()
        fully_shard(sharded.up, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=reshard)
        torch.testing.assert_close(train(sharded, rank, mesh.size(), parts), norms, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(sharded.parameters(), alone.parameters(), strict=True):
            assert isinstance(ours, DTensor)
            torch.testing.assert_close(ours.full_tensor(), theirs, rtol=1e-3, atol=1e-4)


def check_fsdp_in_bfloat16(mesh: DeviceMesh, norms: list[torch.Tensor], rank: int) -> None:
    """Parameters travel in bfloat16, gradients are added up in float32."""
    sharded = fully_shard(
        Net(), mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    )
    torch.testing.assert_close(train(sharded, rank, mesh.size()), norms, rtol=0.1, atol=0.01)
    assert {parameter.dtype for parameter in sharded.parameters()} == {torch.float32}


def check_tensor_parallel(mesh: DeviceMesh, alone: Net) -> None:
    parallel = parallelize_module(copy.deepcopy(alone), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for net in (parallel, alone):
        net.zero_grad()
        net(batch(99)).square().mean().backward()
    torch.testing.assert_close(parallel(batch(99)), alone(batch(99)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parallel.up.weight.grad.full_tensor(), alone.up.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parallel.words.weight.grad, alone.words.weight.grad, rtol=1e-4, atol=1e-6)


def check_dtensor(mesh: DeviceMesh) -> None:
    whole = torch.randn(7, 10, generator=torch.Generator().manual_seed(1))
    places = (Shard(0), Shard(1), Replicate())
    for source in places:
        placed = distribute_tensor(whole, mesh, [source])
        for target in places:
            torch.testing.assert_close(placed.redistribute(mesh, [target]).full_tensor(), whole)
        torch.testing.assert_close(torch.softmax(placed, -1).full_tensor(), torch.softmax(whole, -1))
        torch.testing.assert_close((placed @ placed.T).full_tensor(), whole @ whole.T)
        torch.testing.assert_close(placed.sum(0).full_tensor(), whole.sum(0))
        torch.testing.assert_close(placed.var(1).full_tensor(), whole.var(1))
    parts = DTensor.from_local(whole, mesh, [Partial()])
    for target in places:
        torch.testing.assert_close(parts.redistribute(mesh, [target]).full_tensor(), whole * mesh.size())


def main() -> None:
    world = cpudist.init("ccl", timeout=60)
    mesh = init_device_mesh("cpu", (world.size,))
    alone = Net()
    norms = train(alone, 0, 1)
    check_fsdp(mesh, alone, norms, world.rank)
    check_fsdp_in_bfloat16(mesh, norms, world.rank)
    check_tensor_parallel(mesh, alone)
    check_dtensor(mesh)
    leave(world)


if __name__ == "__main__":
    main()
