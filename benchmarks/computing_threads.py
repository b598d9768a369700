"""Compares collectives inside a machine that two computing threads of each rank carry with those that one carries.

Two ranks of two threads need four cores. On two cores, the first threads of both ranks share one core and the second
threads the other. So one thread of each rank has one core for both ranks, and two threads have two cores: at best they
take half the time.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from usage import asked

ROUNDS, CALLS = 15, 4
MB = 1 << 20

cores = sorted(os.sched_getaffinity(0))[:2]
os.environ |= {"OMP_PLACES": ",".join(f"{{{core}}}" for core in cores), "OMP_PROC_BIND": "true"}
os.environ["OMP_WAIT_POLICY"] = "passive"  # between calls, a thread must not spin on the core of another rank's


def rank(number: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    import cpudist  # noqa: F401 - registers ccl
    from cpudist.backends.ccl import extension

    dist.init_process_group("ccl", init_method=f"file://{folder}/store", rank=number, world_size=2)
    groups = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        extension.load().lend_computing_threads(threads)
        groups[threads] = dist.new_group()
    for size in (1, 4, 25, 96):
        whole, half = torch.ones(size * MB // 4), torch.ones(size * MB // 8)
        calls: dict[str, Callable[[dist.ProcessGroup], object]] = {
            "all_reduce": lambda group: dist.all_reduce(whole, group=group),  # noqa: B023
            "reduce_scatter": lambda group: dist.reduce_scatter_tensor(half, whole, group=group),  # noqa: B023
            "all_gather": lambda group: dist.all_gather_into_tensor(whole, half, group=group),  # noqa: B023
        }
        for name, call in calls.items():
            seconds: dict[int, list[float]] = {1: [], 2: []}
            for _ in range(ROUNDS):
                for threads, times in seconds.items():
                    torch.set_num_threads(threads)
                    call(groups[threads])  # starts the threads
                    dist.barrier()
                    begin = time.perf_counter()
                    for _ in range(CALLS):
                        call(groups[threads])
                    times.append((time.perf_counter() - begin) / CALLS)
            if number == 0:
                one, two = (statistics.median(times) * 1e3 for times in seconds.values())
                print(f"{size:3} MB {name:15} one thread {one:6.2f} ms, two {two:6.2f} ms, ratio {two / one:.2f}")
    if number == 0:
        print(f"bytes of each thread: {extension.load().bytes_of_threads()}")
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank(int(child == 0), folder)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    asked(__doc__)
    main()
