"""Every collective of the ccl backend against torch's own arithmetic, on every rank of a real job, in drawn cases."""

import functools
import random
import time

import drawn
import pytest
import torch
import torch.distributed as dist
from drawn import EVERYONE, GROUPS, Call, cases, laid_out, reduced, same, values, world
from hypothesis import strategies as st
from programs import leave, run_checks

from cpudist.backends.ccl import extension


@cases(st.tuples(*(drawn.calls(name, alone=True) for name in drawn.ALONE)))
def check_each_collective(calls):
    for call in calls:
        call.begin()
        call.finish()


@cases(st.lists(st.sampled_from(drawn.TOGETHER).flatmap(lambda name: drawn.calls(name, False)), min_size=1, max_size=8))
def check_unequal_shares_in_calls_under_way_together(calls):
    """Waited for in another order on each rank."""
    for call in calls:
        call.begin()
    random.Random(world.rank).shuffle(calls)
    for call in calls:
        call.finish()


def check_unequal_shares_of_three_ranks() -> None:
    """Within the timeout: between hosts Intel MPI's own call takes minutes for them (oneccl/transport.cpp)."""
    shares = [(1,), (60_000,), (2_256,)]
    call = Call("all_gather", shares, torch.uint8, "SUM", "contiguous", seed=1, group="subgroup")
    call.begin()
    call.finish()


def group_with(**limit: int) -> dist.ProcessGroup:
    """Make a group whose transport has another limit."""
    module = extension.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "create_group", functools.partial(module.create_group, **limit))
        return dist.new_group()


def check_hundreds_of_calls_while_a_rank_is_late() -> None:
    """Over MPI they have 9 tags; the first call waits for the late rank, those after it for nobody."""
    group, late, count = group_with(mpi_slots=9), world.size - 1, 541
    tensors = [torch.full((10_002 if n % 270 == 0 else 3,), float(n)) for n in range(count)]
    dist.barrier()
    if world.rank == late:
        time.sleep(0.5)
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        if n % 270 == 0
        else dist.reduce(tensor, late, group=group, async_op=True)
        for n, tensor in enumerate(tensors)
    ]
    for n in random.Random(world.rank).sample(range(count), count):
        works[n].wait()
    for n, tensor in enumerate(tensors):
        assert (n % 270 and world.rank != late) or (tensor == n * world.size).all(), n
    dist.destroy_process_group(group)


def check_messages_in_rounds() -> None:
    """Messages are sent in rounds of 1 GB at most; in this test of 1 KB."""
    GROUPS["in rounds"] = EVERYONE, group_with(round_bytes=1024)
    for name in ("all_to_all", "gather", "scatter"):
        lengths = [(2000,), (0,), (300,), (2000,)][: world.size]
        call = Call(name, lengths, torch.float32, "SUM", "contiguous", seed=1, group="in rounds")
        call.begin()
        call.finish()
    _, group = GROUPS.pop("in rounds")
    message = torch.empty(5000)
    work = dist.isend(torch.arange(5000.0) + world.rank, (world.rank + 1) % world.size, group=group)
    source = dist.recv(message, (world.rank - 1) % world.size, group=group)
    work.wait()
    assert torch.equal(message, torch.arange(5000.0) + source)
    dist.destroy_process_group(group)


def check_average_of_integers() -> None:
    """Divided once, towards zero: an average of averages would be another number."""
    inputs = [torch.randint(-99, 100, (400_000,), generator=torch.Generator().manual_seed(r)) for r in EVERYONE]
    tensor = inputs[world.rank].clone()
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert torch.equal(tensor, reduced(inputs, "AVG"))


_order = st.permutations([0, 1, 2])


@cases(_order, _order, drawn.shapes, drawn.types, drawn.layouts, drawn.seeds)
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
    gathered, shares = [torch.empty(n * world.size) for n in lengths], [torch.empty(n) for n in lengths]
    with dist._coalescing_manager():
        for whole, tensor in zip(gathered, tensors, strict=True):
            dist.all_gather_into_tensor(whole, tensor)
    with dist._coalescing_manager():
        for share, whole in zip(shares, gathered, strict=True):
            dist.reduce_scatter_tensor(share, whole)
    for share, tensor in zip(shares, tensors, strict=True):
        same(share, tensor * world.size)


run_checks(globals())
leave(f", carried by {' and '.join(extension.load().traffic())}")
