"""Compares collectives inside a machine that two computing threads of each rank carry with those that one carries.

Two ranks of two threads need four cores. On two cores, the first threads of both ranks share one core and the second
threads the other. So one thread of each rank has one core for both ranks, and two threads have two cores: at best they
take half the time.
"""

import os
import tempfile
from collections.abc import Callable

from usage import asked

MB = 1 << 20

cores = sorted(os.sched_getaffinity(0))[:2]
os.environ |= {"OMP_PLACES": ",".join(f"{{{core}}}" for core in cores), "OMP_PROC_BIND": "true"}
os.environ["OMP_WAIT_POLICY"] = "passive"  # between calls, a thread must not spin on the core of another rank's


def rank(number: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    import cpudist  # noqa: F401 - registers ccl
    from cpudist.backends.ccl import extension
    from cpudist.bench.report import median_cell, ratio_cell, table
    from cpudist.bench.timing import Candidate, Turns, ratio, take_turns, timed, together

    dist.init_process_group("ccl", init_method=f"file://{folder}/store", rank=number, world_size=2)
    groups = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        extension.load().lend_computing_threads(threads)
        groups[threads] = dist.new_group()
    turns, rows = Turns(rounds=15, calls=4, warm_up=1), []  # the call before the timed ones starts the threads

    def with_threads(threads: int, collective: Callable[..., object], *tensors: torch.Tensor) -> Candidate:
        def call() -> None:
            torch.set_num_threads(threads)
            collective(*tensors, group=groups[threads])

        return together(timed(call))

    for size in (1, 4, 25, 96):
        whole, half = torch.ones(size * MB // 4), torch.ones(size * MB // 8)
        calls: dict[str, tuple[Callable[..., object], *tuple[torch.Tensor, ...]]] = {
            "all_reduce": (dist.all_reduce, whole),
            "reduce_scatter": (dist.reduce_scatter_tensor, half, whole),
            "all_gather": (dist.all_gather_into_tensor, whole, half),
        }
        for name, call in calls.items():
            one, two = take_turns({str(threads): with_threads(threads, *call) for threads in groups}, turns).values()
            rows.append([f"{size} MB", name, median_cell(one), median_cell(two), ratio_cell(ratio(two, one))])
    if number == 0:
        print(table(["size", "collective", "one thread", "two", "two / one"], rows))
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
