"""Libraries on top of process groups give the same results on ccl as in one process: `stack.py FOLDER`.

DDP, ZeRO, FSDP2, tensor parallelism, DTensor, checkpoints, and torch's functional collectives.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from program import leave
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cpudist

FOLDER = Path(sys.argv[1])
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
    hooked = cpudist.wrap(Net(), static_graph=True, bucket_cap_mb=1)
    hooked.register_comm_hook(None, fp16_compress_hook)
    hooked(batch(0)).sum().backward()


def check_fsdp_and_its_checkpoint() -> None:
    for reshard, parts in ((True, 1), (False, 1), (True, 2)):
        sharded = Net()
        fully_shard(sharded.up, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=reshard)
        torch.testing.assert_close(train(sharded, world.rank, mesh.size(), parts), norms, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(sharded.parameters(), alone.parameters(), strict=True):
            assert isinstance(ours, DTensor)
            torch.testing.assert_close(ours.full_tensor(), theirs, rtol=1e-3, atol=1e-4)
    state = sharded.state_dict()
    dcp.save(state, checkpoint_id=FOLDER)
    blank = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(blank, checkpoint_id=FOLDER)
    for name, tensor in blank.items():
        torch.testing.assert_close(tensor.full_tensor(), state[name].full_tensor())


def check_fsdp_in_bfloat16() -> None:
    """Parameters travel in bfloat16, gradients are added up in float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded = fully_shard(Net(), mesh=mesh, mp_policy=policy)
    torch.testing.assert_close(train(sharded, world.rank, mesh.size()), norms, rtol=0.1, atol=0.01)
    assert {parameter.dtype for parameter in sharded.parameters()} == {torch.float32}


def check_tensor_parallel() -> None:
    parallel = parallelize_module(copy.deepcopy(alone), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for net in (parallel, alone):
        net.zero_grad()
        net(batch(99)).square().mean().backward()
    torch.testing.assert_close(parallel(batch(99)), alone(batch(99)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parallel.up.weight.grad.full_tensor(), alone.up.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parallel.words.weight.grad, alone.words.weight.grad, rtol=1e-4, atol=1e-6)


def check_dtensor() -> None:
    """Its redistributions are functional collectives: all_gather, reduce_scatter and all_reduce."""
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


def check_functional_collectives() -> None:
    """Those of several tensors, some whose results nobody has waited for yet, and one in a graph of torch.compile."""
    group, size, rank = dist.group.WORLD, world.size, world.rank
    of_all = [torch.randn(6, 4, generator=torch.Generator().manual_seed(other)) for other in range(size)]
    own, total = of_all[rank], sum(of_all)
    kept = own.clone()
    both = functional.all_gather_into_tensor_coalesced([own, own[:2] * 2], group)
    torch.testing.assert_close(both, [torch.cat(of_all), torch.cat([one[:2] * 2 for one in of_all])])
    torch.testing.assert_close(sum(functional.all_reduce_coalesced([own, own * 2], "sum", group)), total * 3)
    (share,) = functional.reduce_scatter_tensor_coalesced([torch.cat([own] * size)], "avg", [0], group)
    torch.testing.assert_close(share + 0, total / size)
    torch.testing.assert_close(own, kept)  # nothing is changed in place

    sent = torch.full(((rank + 1) * size, 2), float(rank))  # rank + 1 rows to each
    received = functional.all_to_all_single(sent, [other + 1 for other in range(size)], [rank + 1] * size, group)
    torch.testing.assert_close(received, torch.cat([torch.full((other + 1, 2), float(other)) for other in range(size)]))

    results = [functional.all_reduce(own + number, "sum", group) for number in range(20)]
    for number, result in reversed(list(enumerate(results))):
        torch.testing.assert_close(result + 0, total + number * size)

    def step(data: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(data * 2, "sum", group) + 1

    torch.testing.assert_close(torch.compile(step, backend="aot_eager", fullgraph=True)(own), 2 * total + 1)


world = cpudist.init("ccl", timeout=60)
assert dist.get_backend() == "ccl"
mesh = init_device_mesh("cpu", (world.size,))
alone = Net()
norms = train(alone, 0, 1)
check_ddp()
check_fsdp_and_its_checkpoint()
check_fsdp_in_bfloat16()
check_tensor_parallel()
check_dtensor()
check_functional_collectives()
leave(world)
