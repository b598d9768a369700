"""What is asked of a process group beyond the collectives themselves: odd tensors, memory, errors, late ranks."""

import gc
import os
import resource
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from programs import leave, run_checks
from torch._C._distributed_c10d import Backend

import cpudist
from cpudist import job, waiting
from cpudist.errors import UserError

world = cpudist.init("ccl", timeout=120)
rank, size = world.rank, world.size
TOTAL = sum(range(size))
MB = 1 << 20
ROOMY = "CPUDIST_TEST_ROOMY" in os.environ  # memory of a sanitizer's makes figures about memory worthless
resident = lambda: psutil.Process().memory_info().rss  # noqa: E731


def refuses(kind: type[Exception], call: Callable[[], object], words: str) -> None:
    """Check that `call` raises exactly this kind of error, in one line with `words`, and communication goes on."""
    with pytest.raises(kind) as caught:
        call()
    assert caught.type is kind, repr(caught.value)
    assert words in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value).strip(), str(caught.value)


def check_tensors_of_inference_mode_and_such_that_require_grad() -> None:
    """Inference mode ends before the operation does."""
    for op, expected in ((dist.ReduceOp.SUM, TOTAL), (dist.ReduceOp.AVG, TOTAL / size)):
        with torch.inference_mode():
            whole = torch.full((1000,), float(rank))
            strided = torch.full((1000, 2), float(rank))[:, 0]
            works = [dist.all_reduce(tensor, op, async_op=True) for tensor in (whole, strided)]
        for work in works:
            work.wait()
        assert set(whole.tolist()) == set(strided.tolist()) == {expected}
        tensor = torch.full((4, 2), float(rank))[:, 0].requires_grad_()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [expected] * 4


def check_expanded_tensors_are_refused_before_anything_is_sent() -> None:
    expanded = torch.zeros(1).expand(4)
    refuses(ValueError, lambda: dist.all_reduce(expanded), "share memory")
    refuses(ValueError, lambda: dist.all_gather([expanded] * size, torch.zeros(4)), "share memory")
    if rank == 0:
        for peer in range(1, size):
            dist.send(torch.ones(4), peer)
        dist.broadcast(torch.ones(4), 0)
    else:
        refuses(ValueError, lambda: dist.recv(expanded, 0), "share memory")
        tensor = torch.zeros(4)
        dist.recv(tensor, 0)
        assert tensor.tolist() == [1] * 4
        refuses(ValueError, lambda: dist.broadcast(expanded, 0), "share memory")
        dist.broadcast(tensor, 0)
    dist.barrier()


def check_overlapping_outputs_are_refused_before_anything_is_sent() -> None:
    memory = torch.zeros(3 * size + 1)
    overlapping = [memory[2 * peer : 2 * peer + 3] for peer in range(size)]
    apart = [torch.zeros(3) for _ in range(size)]
    mine = torch.full((3,), float(rank))
    if rank == 0:
        refuses(ValueError, lambda: dist.gather(mine, overlapping), "share memory")
    dist.gather(mine, apart if rank == 0 else None)
    refuses(ValueError, lambda: dist.all_to_all(overlapping, [mine] * size), "share memory")
    dist.all_to_all(apart, [mine] * size)
    assert [part.tolist() for part in apart] == [[float(peer)] * 3 for peer in range(size)]
    refuses(ValueError, lambda: dist.all_gather(overlapping, mine), "share memory")
    columns = torch.zeros(3, size)
    dist.all_gather(list(columns.unbind(1)), mine)  # interleaved, which is no overlap
    assert columns.tolist() == [[float(peer) for peer in range(size)]] * 3


def check_inputs_that_overlap_outputs() -> None:
    """Inputs in place of outputs, or shifted, give the results of a copied input."""
    whole = torch.zeros(size * 4)
    own = whole[rank * 4 : rank * 4 + 4].fill_(rank)
    dist.all_gather_into_tensor(whole, own)
    assert whole.tolist() == [float(r) for r in range(size) for _ in range(4)]
    shifted = torch.zeros(size * 4)
    dist.all_gather_into_tensor(shifted, shifted[1:5].fill_(rank))
    assert shifted.tolist() == [float(r) for r in range(size) for _ in range(4)]
    for start in (rank * 4, 1):
        shares = torch.arange(size * 4.0)
        dist.reduce_scatter_tensor(shares[start : start + 4], shares.clone() if start == rank * 4 else shares)
        assert shares[start : start + 4].tolist() == [size * float(rank * 4 + i) for i in range(4)]
    in_place = torch.arange(size * 4.0)
    dist.reduce_scatter_tensor(in_place[rank * 4 : rank * 4 + 4], in_place)
    assert in_place[rank * 4 : rank * 4 + 4].tolist() == [size * float(rank * 4 + i) for i in range(4)]
    exchanged = torch.arange(size * 2.0) + 100 * rank
    dist.all_to_all_single(exchanged, exchanged)
    assert exchanged.tolist() == [float(rank * 2 + i + 100 * r) for r in range(size) for i in range(2)]


def check_float16_averages_do_not_overflow() -> None:
    op, expected = dist.ReduceOp.AVG, [40_000.0] * 3
    tensor = torch.full((3,), 40_000, dtype=torch.float16)
    dist.all_reduce(tensor, op)
    assert tensor.tolist() == expected
    dist.reduce(tensor, 0, op)
    assert tensor.tolist() == expected
    output = torch.zeros(3, dtype=torch.float16)
    dist.reduce_scatter(output, [torch.full((3,), 40_000, dtype=torch.float16)] * size, op)
    assert output.tolist() == expected
    tiny = torch.full((3,), 2.0**-24, dtype=torch.float16)  # the smallest there is
    dist.all_reduce(tiny, dist.ReduceOp.SUM)
    assert tiny.tolist() == [size * 2.0**-24] * 3


def check_a_finished_work_holds_no_buffers() -> None:
    handles = []
    before = resident()
    for _ in range(4):
        wide = torch.zeros(8 * MB, 2)
        handles.append(dist.all_reduce(wide[:, 0], async_op=True))  # copied to a buffer, for it is not contiguous
        handles[-1].wait()
        outputs = torch.zeros(size * 8 * MB)
        handles.append(dist.all_gather(list(outputs.chunk(size)), wide[:, 0], async_op=True))
        handles[-1].wait()
        for tensor in (wide, outputs):
            tensor.untyped_storage().resize_(0)  # a work does keep the caller's own tensors: they are its result
    # The engine's thread may report the end of the last work and free its buffers after that.
    assert ROOMY or waiting.poll(lambda: resident() - before < 96 * MB, 10), (
        f"{(resident() - before) // MB} MB more than before"
    )


def check_a_large_reduce_scatter_makes_no_second_copy() -> None:
    shares = torch.ones(size, 16 * MB)
    output = torch.zeros(16 * MB)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    dist.reduce_scatter_tensor(output, shares)
    assert output[[0, -1]].tolist() == [size] * 2
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert ROOMY or more < shares.nbytes // 2, f"{more // MB} MB for an input of {shares.nbytes // MB} MB"


def check_errors_are_those_of_python() -> None:
    group = dist.group.WORLD
    options = dist.BroadcastOptions()
    for options.rootRank in (size, -1):
        refuses(ValueError, lambda: group.broadcast([torch.zeros(1)], options), f"there is no rank {options.rootRank}")
    refuses(ValueError, lambda: dist.all_reduce(torch.zeros(2), dist.ReduceOp.BXOR), "bitwise")
    refuses(TypeError, lambda: dist.all_reduce(torch.zeros(2, dtype=torch.float8_e5m2)), "cannot reduce")
    refuses(ValueError, lambda: dist.all_reduce(torch.zeros(2, dtype=torch.bool), dist.ReduceOp.AVG), "no average")
    uneven = torch.zeros(2 * size + 1)
    refuses(ValueError, lambda: dist.all_to_all_single(uneven.clone(), uneven), "divide")
    refuses(ValueError, lambda: dist.all_reduce(torch.zeros(2).to_sparse(), dist.ReduceOp.MAX), "only be summed")
    refuses(ValueError, lambda: dist.all_gather([torch.zeros(3)] * (size + 1), torch.zeros(3)), "list of")
    peer = (rank + 1) % size
    for call in (dist.send, dist.recv, dist.isend, dist.irecv):
        refuses(ValueError, partial(call, torch.zeros(1), peer, tag=-1), "a tag cannot be negative, got -1")
    foreign = type("Foreign", (Backend.Options,), {})("ccl")
    refuses(UserError, lambda: dist.new_group(pg_options=foreign), "no pg_options of type Foreign")
    dist.barrier()


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


def check_no_call_waits_for_a_late_peer() -> None:
    """A call that does so holds the engine's lock, and has no time limit."""
    store = job.require().store
    calls: dict[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(3), async_op=True),
        "barrier": lambda: dist.barrier(async_op=True),
        "broadcast": lambda: dist.broadcast(torch.ones(3), size - 1, async_op=True),
        "all_gather": lambda: dist.all_gather([torch.ones(3) for _ in range(size)], torch.ones(3), async_op=True),
        "flat all_gather": lambda: dist.all_gather_into_tensor(torch.ones(3 * size), torch.ones(3), async_op=True),
        "flat reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(3 * size), async_op=True),
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
        work.wait(timedelta(days=100_000))  # more nanoseconds than an integer has


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


run_checks(globals())
leave()
