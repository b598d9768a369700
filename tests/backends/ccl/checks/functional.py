"""torch's functional collectives on ccl: each result is computed on one process, too."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from program import leave

import cpudist


def of_rank(rank: int, rows: int = 6) -> torch.Tensor:
    """What this rank contributes; every rank can compute it."""
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rank))


def equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def check_each(rank: int, size: int) -> None:
    group = dist.group.WORLD
    own = of_rank(rank)
    of_all = [of_rank(other) for other in range(size)]
    total = torch.stack(of_all).sum(0)
    kept = own.clone()

    equal(functional.all_reduce(own, "sum", group), total)
    equal(functional.all_reduce(own, "avg", group), total / size)
    equal(functional.all_reduce(own, "max", group), torch.stack(of_all).amax(0))
    equal(functional.broadcast(own, size - 1, group), of_all[-1])
    equal(functional.all_gather_tensor(own, 0, group), torch.cat(of_all))
    equal(functional.all_gather_tensor(own, 1, group), torch.cat(of_all, dim=1))
    both = functional.all_gather_into_tensor_coalesced([own, own[:2] * 2], group)
    equal(both[0], torch.cat(of_all))
    equal(both[1], torch.cat([one[:2] * 2 for one in of_all]))
    equal(sum(functional.all_reduce_coalesced([own, own * 2], "sum", group)), total * 3)
    equal(own, kept)  # nothing is changed in place

    blocks = [torch.cat([of_rank(10 * other + place) for place in range(size)]) for other in range(size)]
    share = torch.stack([one.chunk(size)[rank] for one in blocks]).sum(0)
    equal(functional.reduce_scatter_tensor(blocks[rank], "sum", 0, group), share)
    (found,) = functional.reduce_scatter_tensor_coalesced([blocks[rank]], "avg", [0], group)
    equal(found, share / size)

    # Rank r sends r + 1 rows to each, so everybody receives 1, 2, ... rows.
    sent = of_rank(rank, rows=(rank + 1) * size)
    received = functional.all_to_all_single(sent, [other + 1 for other in range(size)], [rank + 1] * size, group)
    expected = [of_rank(other, rows=(other + 1) * size).chunk(size)[rank] for other in range(size)]
    equal(received, torch.cat(expected))


def check_gradients(rank: int, size: int) -> None:
    """Backward of a gather is a reduce_scatter, and the other way round."""
    own = of_rank(rank).requires_grad_()
    functional.all_gather_tensor_autograd(own, 0, dist.group.WORLD).square().sum().backward()
    equal(own.grad, 2 * size * own.detach())

    whole = of_rank(rank, rows=6 * size).requires_grad_()
    # Squares: torch 2.8 needs a contiguous gradient, and the gradient of a sum alone is expanded.
    functional.reduce_scatter_tensor_autograd(whole, "sum", 0, dist.group.WORLD).square().sum().backward()
    equal(whole.grad, 2 * sum(of_rank(other, rows=6 * size) for other in range(size)))


def check_order(rank: int, size: int) -> None:
    """Results that nobody has waited for yet may be used in any order."""
    results = [functional.all_reduce(of_rank(rank) + number, "sum", dist.group.WORLD) for number in range(20)]
    total = torch.stack([of_rank(other) for other in range(size)]).sum(0)
    for number, result in reversed(list(enumerate(results))):
        equal(result + 0, total + number * size)


def check_traced(rank: int, size: int) -> None:
    """Check the collectives in a graph that torch.compile has captured as a whole."""

    def step(data: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(data * 2, "sum", dist.group.WORLD) + 1

    expected = 2 * torch.stack([of_rank(other) for other in range(size)]).sum(0) + 1
    equal(torch.compile(step, backend="aot_eager", fullgraph=True)(of_rank(rank)), expected)


def main() -> None:
    world = cpudist.init("ccl", timeout=60)
    for check in (check_each, check_gradients, check_order, check_traced):
        check(world.rank, world.size)
    leave(world)


if __name__ == "__main__":
    main()
