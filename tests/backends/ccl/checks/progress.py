"""Who moves messages on: waits, futures, callbacks and other threads, while this rank or a peer does something else."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from programs import leave, run_checks

import cpudist
from cpudist import job
from cpudist.waiting import poll

world = cpudist.init("ccl", timeout=120)
TOTAL = sum(range(world.size))
MB = 1 << 20


def check_a_peer_needs_progress_while_this_rank_is_elsewhere() -> None:
    """This rank makes a group, or waits in the store; it might be a file, or another library's barrier."""
    store = job.require().store
    in_store = lambda: store.get("progress/arrived"), lambda: store.set("progress/arrived", "1")
    for place, (wait, end_wait) in {"group": (dist.new_group, dist.new_group), "store": in_store}.items():
        tensor = torch.full((16 * MB,), float(world.rank))
        work = dist.all_reduce(tensor, async_op=True)
        if world.rank == 0:
            store.set(f"progress/{place}", "1")
            wait()
            work.wait()
        else:
            store.get(f"progress/{place}")
            work.wait()
            end_wait()
        assert tensor[[0, -1]].tolist() == [TOTAL, TOTAL]


def check_a_message_that_peers_need_first_is_sent_after_a_future_is_asked_for() -> None:
    """Also in a backward pass, where the caller of DDP's hooks waits for a future while messages move."""

    def exchange(gradient: torch.Tensor) -> torch.Tensor:
        total, message = torch.full((4,), float(world.rank)), torch.full((4,), 7.0)
        if world.rank == 0:
            future = dist.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
            for peer in range(1, world.size):
                dist.send(message, peer)
            assert future.wait().tolist() == [2 * TOTAL] * 4
        else:
            dist.recv(message.zero_(), 0)
            dist.all_reduce(total)
            assert (total[0], message[0]) == (TOTAL, 7)
        return gradient

    exchange(torch.ones(1))
    value = torch.ones(1, requires_grad=True)
    value.register_hook(exchange)
    value.sum().backward()


def check_a_callback_waits_for_another_operation() -> None:
    first, second, third = (torch.full((n,), float(world.rank)) for n in (10, 100_000, 5))
    later = dist.all_reduce(second, async_op=True).get_future()

    def then(future: torch.futures.Future) -> float:
        later.wait()
        inside = dist.all_reduce(third, async_op=True).get_future()
        inside.wait()
        dist.barrier()
        return float(future.value()[0][0] + second[0] + third[0])

    result = dist.all_reduce(first, async_op=True).get_future().then(then)
    assert result.wait() == 3 * TOTAL


def check_a_callback_may_need_a_lock_that_a_waiting_thread_holds() -> None:
    """So the thread that waits for another operation must not run it. Other ranks come when the lock is held."""
    first, second, lock = torch.ones(10), torch.ones(10), threading.Lock()

    def then(future: torch.futures.Future) -> float:
        with lock:
            return float(future.value()[0][0])

    if world.rank > 0:
        job.require().store.get("edges/locked")
        dist.all_reduce(first)
        dist.all_reduce(second)
        return
    work = dist.all_reduce(first, async_op=True)
    future = work.get_future()
    result = future.then(then)
    with lock:
        job.require().store.set("edges/locked", "1")
        dist.all_reduce(second)
        work.wait()
        assert future.done(), "a work that has been waited for has its result in its future"
    assert result.wait() == world.size


def check_a_future_wakes_the_thread_that_completes_it() -> None:
    """Asked for while the engine's thread sleeps, which may be for an hour (programs.py)."""
    for number in range(50):
        tensor = torch.full((1 << 20,), float(world.rank))
        work = dist.all_reduce(tensor, async_op=True)
        torch.rand(200, 200) @ torch.rand(200, 200)  # meanwhile the thread falls asleep
        future = work.get_future()
        assert poll(future.done, 15), f"future {number} is not complete"
        assert tensor[-1] == TOTAL


def check_other_threads_run_while_one_asks() -> None:
    """The peers come only when another Python thread of this rank has called them: the GIL must be free."""
    for name, ask in (
        ("get_future", lambda work: work.get_future().wait()),
        ("is_completed", lambda work: [None for _ in iter(work.is_completed, True)]),
        ("wait", lambda work: work.wait()),
    ):
        key = f"edges/gil/{name}"
        if world.rank == 0:
            work = dist.all_reduce(torch.zeros(10), async_op=True)
            asking = threading.Event()
            caller = threading.Thread(target=lambda: (asking.wait(), job.require().store.set(key, "1")))  # noqa: B023
            caller.start()
            asking.set()
            ask(work)
            caller.join()
        else:
            job.require().store.get(key)
            dist.all_reduce(torch.zeros(10))


def check_many_threads_wait_at_once() -> None:
    """Each thread waits on a group of its own; which of them makes progress is left to chance."""
    groups = [dist.new_group() for _ in range(3)]

    def use(group: dist.ProcessGroup) -> None:
        for i in range(100):
            tensor = torch.full((1 + 997 * (i % 5),), float(world.rank))
            work = dist.all_reduce(tensor, group=group, async_op=True)
            if i % 3 == 0:
                work.get_future().wait()
            elif i % 3 == 1:
                work.wait()
            else:
                while not work.is_completed():
                    pass
            assert tensor[-1] == TOTAL

    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(use, groups))


run_checks(globals())
leave()
