"""What c10d's backends have in common besides the collectives, in a script that knows torch alone."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import plain
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.ccl import extension
from cpudist.errors import UserError

plain.set_variables()
BITWISE = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


class Foreign(Backend.Options):
    """Options of another backend."""


def own_group() -> dist.Backend:
    return distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def check_bitwise_reductions() -> None:
    for dtype in (torch.int8, torch.uint8, torch.int64, torch.bool):
        high = 2 if dtype == torch.bool else 100
        for count in (5, 300_000):
            inputs = [torch.randint(0, high, (count,), generator=seed(rank)).to(dtype) for rank in range(size)]
            for name, operation in BITWISE.items():
                op, expected = getattr(dist.ReduceOp, name), functools.reduce(operation, inputs)
                tensor = inputs[rank].clone()
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, expected), (dtype, name)
                tensor = inputs[rank].clone()
                dist.reduce(tensor, 0, op)
                assert rank != 0 or torch.equal(tensor, expected), (dtype, name)
                output = torch.empty(count, dtype=dtype)
                dist.reduce_scatter(output, [inputs[rank]] * size, op)
                assert torch.equal(output, expected), (dtype, name)


def seed(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def check_sparse_sums() -> None:
    def contribution(rank: int) -> torch.Tensor:
        return torch.sparse_coo_tensor([[rank, 5, rank]], torch.ones(3, 4) * (rank + 1), (10, 4))

    expected = sum(contribution(each).to_dense() for each in range(size))
    tensor = contribution(rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), expected)
    # Rank 0 contributes nothing.
    tensor = torch.sparse_coo_tensor(
        torch.zeros(1, min(rank, 1), dtype=torch.long), [float(rank)] * min(rank, 1), (10,)
    )
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.to_dense()[0] == sum(range(size))


def check_sparse_gradients_in_ddp() -> None:
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(10, 3, sparse=True)
    model = DistributedDataParallel(embedding)
    model(torch.tensor([rank, 5])).sum().backward()
    gradient = embedding.weight.grad.to_dense()
    torch.testing.assert_close(gradient[5], torch.ones(3))
    torch.testing.assert_close(gradient[:size], torch.full((size, 3), 1 / size))


def check_one_floating_point_state() -> None:
    """The smallest numbers are kept, whatever state the ranks' threads have, who polls, and how many ranks reduce."""
    smallest = torch.tensor([0x00010000], dtype=torch.int32).view(torch.float32)
    assert torch.set_flush_denormal(rank == 1)
    for count in (3, 1000, 100_000):
        for wait in ("wait", "future"):
            tensor = smallest.expand(count).clone()
            work = dist.all_reduce(tensor, async_op=True)
            work.get_future().wait() if wait == "future" else work.wait()
            assert (tensor.view(torch.int32) == 0x00010000 * size).all()
    # The state of the caller is as it was.
    assert ((smallest * 1).view(torch.int32) == 0).all() == (rank == 1)
    torch.set_flush_denormal(False)


def check_refusals() -> None:
    other = (rank + 1) % size
    for call in (dist.send, dist.recv, dist.isend, dist.irecv):
        with pytest.raises(ValueError, match="a tag cannot be negative, got -1"):
            call(torch.zeros(1), other, tag=-1)
    with pytest.raises(UserError, match="the ccl backend takes no pg_options of type Foreign"):
        dist.new_group(pg_options=Foreign("ccl"))
    dist.barrier()


def check_no_call_waits_for_a_late_peer() -> None:
    """A call that does so holds the engine's lock, and has no time limit."""
    store = distributed_c10d._get_default_store()
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3), async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
        "broadcast": lambda: dist.broadcast(torch.ones(3), size - 1, async_op=True),
        "all_gather": lambda: dist.all_gather([torch.ones(3) for _ in range(size)], torch.ones(3), async_op=True),
        "all_gather_single": lambda: distributed_c10d.all_gather_into_tensor(
            torch.ones(3 * size), torch.ones(3), async_op=True
        ),
        "reduce_scatter_single": lambda: distributed_c10d.reduce_scatter_tensor(
            torch.ones(3), torch.ones(3 * size), async_op=True
        ),
        "all_to_all": lambda: dist.all_to_all_single(torch.ones(size), torch.ones(size), async_op=True),
        "gather": lambda: dist.gather(
            torch.ones(3), [torch.ones(3) for _ in range(size)] if rank == 0 else None, async_op=True
        ),
    }
    for name, call in calls.items():
        if rank > 0:
            store.wait([f"returned/{name}"], timedelta(seconds=30))
        work = call()
        if rank == 0:
            assert not work.is_completed()
            store.set(f"returned/{name}", "1")
        work.wait()


def check_what_a_backend_answers() -> None:
    group = own_group()
    assert group.supports_tensor_alloc(torch.device("cpu"))
    assert group.allocate_tensor(5, dtype=torch.float64, device=torch.device("cpu")).shape == (5,)
    if hasattr(group, "options"):
        assert group.options._timeout == timedelta(seconds=60)


def check_messages_in_rounds() -> None:
    """Messages are sent in rounds of 1 GB at most; in this test of 1 KB."""
    module = extension.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "create_group", functools.partial(module.create_group, round_bytes=1024))
        group = dist.new_group()
    counts = [[(2000, 0, 300)[(a + b) % 3] for b in range(size)] for a in range(size)]  # from a to b
    everyone = [
        [torch.randn(count, generator=seed(a * size + b)) for b, count in enumerate(row)]
        for a, row in enumerate(counts)
    ]
    received = [torch.empty(row[rank]) for row in counts]
    dist.all_to_all(received, everyone[rank], group=group)
    assert all(torch.equal(tensor, row[rank]) for tensor, row in zip(received, everyone, strict=True))
    row = [torch.randn(2000, generator=seed(peer)) for peer in range(size)]
    root, gathered = size - 1, [torch.empty(2000) for _ in range(size)]
    dist.gather(row[rank], gathered if rank == root else None, root, group=group)
    assert rank != root or all(map(torch.equal, gathered, row))
    share = torch.empty(2000)
    dist.scatter(share, row if rank == root else None, root, group=group)
    assert torch.equal(share, row[rank])
    message = torch.empty(5000)
    work = dist.isend(torch.full((5000,), float(rank)), (rank + 1) % size, group=group)
    dist.recv(message, (rank - 1) % size, group=group)
    work.wait()
    assert (message == (rank - 1) % size).all()
    dist.destroy_process_group(group)


def check_groups_that_come_and_go_beside_a_thread() -> None:
    """The garbage collector frees a group while it holds Python's lock, and the thread needs both locks."""
    beside = dist.new_group()

    def reduce() -> None:
        for count in range(300):
            tensor = torch.ones(1 + count)
            dist.all_reduce(tensor, group=beside)
            assert tensor[-1] == size

    thread = threading.Thread(target=reduce)
    thread.start()
    for _ in range(5):
        group = dist.new_group()
        dist.all_reduce(torch.ones(1000), group=group, async_op=True).get_future().wait()
        dist.destroy_process_group(group)
        del group
        gc.collect()
    thread.join()


def check_groups_freed_in_another_order_on_each_rank() -> None:
    """And made again: over MPI the ranks free the communicators then, together and in one order."""
    for _ in range(2):
        groups = [dist.new_group() for _ in range(3)]
        works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in groups]
        for work in works:
            work.wait()
        for number in range(len(groups)):
            dist.destroy_process_group(groups[(number + rank) % len(groups)])


def check_groups_made_again() -> None:
    """The keys of an earlier group of the same name are still in the store, and ranks come at different times."""
    for _ in range(3):
        if rank < 2:
            group = dist.new_group([0, 1], use_local_synchronization=True)
            time.sleep(0.1 * rank)
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            assert tensor.item() == 2
            dist.destroy_process_group(group)


CHECKS: list[Callable[[], None]] = [check for name, check in list(globals().items()) if name.startswith("check_")]

for turn in range(3):
    options = {} if turn else {"pg_options": Backend.Options("ccl", timedelta(seconds=60))}
    dist.init_process_group("ccl", timeout=timedelta(seconds=60), **options)
    rank, size = dist.get_rank(), dist.get_world_size()
    for check in CHECKS if turn == 0 else CHECKS[-1:]:
        check()
    tensor = torch.tensor(float(rank + turn))
    dist.all_reduce(tensor)
    assert tensor.item() == sum(range(size)) + turn * size
    dist.destroy_process_group()
    time.sleep(0.2 * rank)
if rank == 0:
    print(f"{len(CHECKS)} checks of semantics passed")
sys.stdout.flush()
