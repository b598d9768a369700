"""Compares an allreduce inside a machine that one computing thread of each rank carries with one that two carry.

Two ranks of two threads need four cores. On a machine of two cores the ranks take turns: one works on both while the
other sleeps, until it has to wait for the other. So a time is that of both ranks' work.
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time

ROUNDS, CALLS = 9, 4

os.environ["OMP_WAIT_POLICY"] = "passive"  # the threads of the rank that sleeps must not spin


def timed(work: object, baton: socket.socket, first: bool) -> float:
    """Return the seconds until the call is complete on both ranks."""
    begin = time.perf_counter()
    told = b"" if first else baton.recv(1)
    while not work.is_completed():  # which does some of the work
        if told != b"d":  # the other rank is done
            baton.send(b".")
            told = baton.recv(1)
    baton.send(b"d")
    while told != b"d":
        told = baton.recv(1)
    return time.perf_counter() - begin


def rank(number: int, baton: socket.socket, folder: str) -> None:
    import torch
    import torch.distributed as dist

    import cpudist  # noqa: F401 - registers ccl
    from cpudist.backends.ccl import extension

    dist.init_process_group("ccl", init_method=f"file://{folder}/store", rank=number, world_size=2)
    for size in (1, 4, 25, 96):
        tensor = torch.ones(size << 18)
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(ROUNDS):
            for threads, times in seconds.items():
                torch.set_num_threads(threads)
                extension.load().lend_computing_threads(threads)
                dist.all_reduce(tensor)  # starts the threads
                for _ in range(CALLS):
                    dist.barrier()
                    times.append(timed(dist.all_reduce(tensor, async_op=True), baton, number == 0))
        if number == 0:
            one, two = (statistics.median(times) * 1e3 for times in seconds.values())
            print(f"{size:3} MB: one thread {one:.2f} ms, two {two:.2f} ms, ratio {two / one:.2f}")
    if number == 0:
        print(f"bytes of each thread: {extension.load().bytes_of_threads()}")
    dist.destroy_process_group()


def main() -> None:
    batons = socket.socketpair()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank(int(child == 0), batons[child == 0], folder)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
