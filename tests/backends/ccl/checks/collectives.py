"""Every collective of the ccl backend against torch's own arithmetic, on every rank of a real job, in drawn cases."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from drawn import (
    ANY,
    EVERYONE,
    begin,
    calls,
    cases,
    finish,
    groups,
    laid_out,
    layouts,
    reduced,
    reduction_cases,
    same,
    seeds,
    shapes,
    values,
    ways,
    world,
)
from hypothesis import strategies as st
from program import leave, run_checks

from cpudist.backends.ccl import extension


@reduction_cases
def check_all_reduce(shape, case, layout, seed, group, way):
    dtype, name = case
    if world.rank not in group.ranks:
        return
    inputs = [values(shape, dtype, seed, rank) for rank in group.ranks]
    tensor = laid_out(inputs[group.rank], layout)
    op = getattr(dist.ReduceOp, name)
    finish(dist.all_reduce(tensor, op, group=group.handle, async_op=way != "sync"), way)
    same(tensor, reduced(inputs, name))


def check_average_of_integers() -> None:
    """Divided once, towards zero: an average of averages would be another number."""
    inputs = [torch.randint(-99, 100, (400_000,), generator=torch.Generator().manual_seed(r)) for r in EVERYONE]
    tensor = inputs[world.rank].clone()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert torch.equal(tensor, reduced(inputs, "AVG"))


@reduction_cases
def check_reduce(shape, case, layout, seed, group, way):
    dtype, name = case
    if world.rank not in group.ranks:
        return
    root = group.ranks[seed % group.size]
    inputs = [values(shape, dtype, seed, rank) for rank in group.ranks]
    tensor = laid_out(inputs[group.rank], layout)
    op = getattr(dist.ReduceOp, name)
    finish(dist.reduce(tensor, root, op, group=group.handle, async_op=way != "sync"), way)
    same(tensor, reduced(inputs, name) if world.rank == root else inputs[group.rank])


@reduction_cases
def check_reduce_scatter(shape, case, layout, seed, group, way):
    dtype, name = case
    if world.rank not in group.ranks:
        return
    op = getattr(dist.ReduceOp, name)
    inputs = [[values(shape, dtype, seed + share, rank) for share in range(group.size)] for rank in group.ranks]
    mine = [laid_out(tensor, layout) for tensor in inputs[group.rank]]
    output = laid_out(torch.zeros_like(mine[0]), layout)
    finish(dist.reduce_scatter(output, mine, op, group=group.handle, async_op=way != "sync"), way)
    expected = reduced([each[group.rank] for each in inputs], name)
    same(output, expected)
    flat = torch.empty(expected.numel(), dtype=dtype)
    whole = torch.cat([tensor.reshape(-1) for tensor in mine])
    finish(dist.reduce_scatter_tensor(flat, whole, op, group=group.handle, async_op=way != "sync"), way)
    same(flat, expected.reshape(-1))


@cases(shapes, st.sampled_from(ANY), layouts, seeds, groups, ways)
def check_broadcast(shape, dtype, layout, seed, group, way):
    if world.rank not in group.ranks:
        return
    root = group.ranks[seed % group.size]
    expected = values(shape, dtype, seed, root)
    tensor = laid_out(expected if world.rank == root else torch.zeros_like(expected), layout)
    finish(dist.broadcast(tensor, root, group=group.handle, async_op=way != "sync"), way)
    same(tensor, expected)


@cases(shapes, st.sampled_from(ANY), layouts, seeds, groups, ways)
def check_all_gather(shape, dtype, layout, seed, group, way):
    if world.rank not in group.ranks:
        return
    expected = [values(shape, dtype, seed, rank) for rank in group.ranks]
    own = laid_out(expected[group.rank], layout)
    outputs = [laid_out(torch.zeros_like(tensor), layout) for tensor in expected]
    finish(dist.all_gather(outputs, own, group=group.handle, async_op=way != "sync"), way)
    for actual, wanted in zip(outputs, expected, strict=True):
        same(actual, wanted)
    if not dtype.is_complex:
        flat = torch.empty(group.size * own.numel(), dtype=dtype)
        finish(
            dist.all_gather_into_tensor(flat, own.reshape(-1), group=group.handle, async_op=way != "sync"),
            way,
        )
        same(flat, torch.cat([tensor.reshape(-1) for tensor in expected]))


@cases(st.lists(calls, min_size=1, max_size=6))
def check_unequal_shares_in_calls_under_way_together(drawn):
    """Waited for in another order on each rank."""
    begun = [begin(*call) for call in drawn if world.rank in call[-1].ranks]
    random.Random(world.rank).shuffle(begun)
    for call in begun:
        call.finish()


@cases(shapes, st.sampled_from(ANY), layouts, seeds, groups, ways)
def check_gather_and_scatter(shape, dtype, layout, seed, group, way):
    if world.rank not in group.ranks:
        return
    root = group.ranks[seed % group.size]
    expected = [values(shape, dtype, seed, rank) for rank in group.ranks]
    own = laid_out(expected[group.rank], layout)
    outputs = [laid_out(torch.zeros_like(tensor), layout) for tensor in expected] if world.rank == root else None
    finish(dist.gather(own, outputs, root, group=group.handle, async_op=way != "sync"), way)
    for actual, wanted in zip(outputs or [], expected, strict=outputs is not None):
        same(actual, wanted)
    if hasattr(dist, "gather_single"):  # since torch 2.14
        flat = torch.empty(group.size * own.numel(), dtype=dtype) if world.rank == root else None
        finish(dist.gather_single(own, flat, root, group=group.handle, async_op=way != "sync"), way)
        if flat is not None:
            same(flat, torch.cat([tensor.reshape(-1) for tensor in expected]))
    back = laid_out(torch.zeros_like(own), layout)
    inputs = [laid_out(tensor, layout) for tensor in expected] if world.rank == root else None
    finish(dist.scatter(back, inputs, root, group=group.handle, async_op=way != "sync"), way)
    same(back, expected[group.rank])


@cases(
    st.lists(st.integers(0, 4), min_size=world.size**2, max_size=world.size**2),
    st.sampled_from(ANY),
    seeds,
    ways,
)
def check_all_to_all(rows, dtype, seed, way):
    def part(source: int, target: int) -> torch.Tensor:
        return values((rows[source * world.size + target], 2), dtype, seed + 7 * target, source)

    everyone = range(world.size)
    sends = [part(world.rank, target) for target in everyone]
    expected = [part(source, world.rank) for source in everyone]
    outputs = [torch.zeros_like(tensor) for tensor in expected]
    finish(dist.all_to_all(outputs, sends, async_op=way != "sync"), way)
    for actual, wanted in zip(outputs, expected, strict=True):
        same(actual, wanted)
    flat = torch.zeros(sum(len(tensor) for tensor in expected), 2, dtype=dtype)
    work = dist.all_to_all_single(
        flat, torch.cat(sends), [len(t) for t in expected], [len(t) for t in sends], async_op=way != "sync"
    )
    finish(work, way)
    same(flat, torch.cat(expected))


@cases(st.permutations([0, 1, 2]), st.permutations([0, 1, 2]), shapes, st.sampled_from(ANY), layouts, seeds)
def check_messages(send_order, receive_order, shape, dtype, layout, seed):
    """Messages of three tags around the ring, sent and received in any order."""
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    expected = {tag: values(shape, dtype, seed + tag, before) for tag in range(3)}
    received = {tag: laid_out(torch.zeros_like(tensor), layout) for tag, tensor in expected.items()}
    works = [
        dist.isend(laid_out(values(shape, dtype, seed + tag, world.rank), layout), after, tag=tag) for tag in send_order
    ]
    works += [dist.irecv(received[tag], before, tag=tag) for tag in receive_order]
    for work in works:
        work.wait()
    for tag, tensor in received.items():
        same(tensor, expected[tag])


def check_any_source() -> None:
    if world.rank == 0:
        seen = set()
        for _ in range(world.size - 1):
            tensor = torch.zeros(3)
            source = dist.recv(tensor)
            assert tensor.tolist() == [float(source)] * 3
            seen.add(source)
        assert seen == set(range(1, world.size))
    else:
        dist.send(torch.full((3,), float(world.rank)), 0)
    dist.barrier()


def check_wrong_size_of_message() -> None:
    if world.rank == 0:
        dist.send(torch.zeros(4), 1)
        dist.send(torch.ones(2), 1)
    elif world.rank == 1:
        with pytest.raises((RuntimeError, ValueError), match="16 bytes"):
            dist.recv(torch.zeros(2), 0)
        after = torch.zeros(2)
        dist.recv(after, 0)
        assert after.tolist() == [1, 1], "the message behind it must still arrive"
    dist.barrier()


def check_coalesced() -> None:
    lengths = (1, 5, 0, 7, 30_000, 9, 9)  # one is too long to be packed with the others
    tensors = [torch.full((n,), float(world.rank + n)) for n in lengths]
    strided = torch.full((4, 2), float(world.rank))[:, 0]
    integers = torch.full((3,), world.rank)
    with dist._coalescing_manager():
        for tensor in [*tensors, strided, integers]:
            dist.all_reduce(tensor)
    total = sum(range(world.size))
    for n, tensor in zip(lengths, tensors, strict=True):
        same(tensor, torch.full((n,), float(total + n * world.size)))
    same(strided, torch.full((4,), float(total)))
    same(integers, torch.full((3,), total))


if __name__ == "__main__":
    run_checks(globals())
    leave(world, f", carried by {' and '.join(extension.load().traffic())}")
