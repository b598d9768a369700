"""Shows what an allreduce loses to another process that now and then takes a core of the threads that carry it.

Two ranks of two threads: the first threads of both on one core, the second ones on the other. The neighbour, of higher
priority where root starts this, takes the second core for 1 to 20 ms, and a tenth of it in all. Measured in turns
without and with it; one thread of each rank takes about twice as long.
"""

import os
import random
import signal
import statistics
import tempfile
import time

from usage import asked

ROUNDS, SECONDS, VALUES = 10, 0.5, 1 << 20

cores = sorted(os.sched_getaffinity(0))[:2]
os.environ |= {"OMP_PLACES": ",".join(f"{{{core}}}" for core in cores), "OMP_PROC_BIND": "true"}
os.environ["OMP_WAIT_POLICY"] = "passive"  # between calls, a thread must not spin on the core of another rank's


def neighbour() -> None:
    os.sched_setaffinity(0, cores[1:])
    if os.geteuid() == 0:
        os.nice(-10)
    while True:
        taken = random.uniform(0.001, 0.02)
        end = time.perf_counter() + taken
        while time.perf_counter() < end:
            pass
        time.sleep(9 * taken)


def rank(number: int, folder: str, other: int) -> None:
    import torch
    import torch.distributed as dist

    import cpudist  # noqa: F401 - registers ccl
    from cpudist.backends.ccl import extension

    dist.init_process_group("ccl", init_method=f"file://{folder}/store", rank=number, world_size=2)
    torch.set_num_threads(2)
    extension.load().lend_computing_threads(2)
    group, values = dist.new_group(), torch.ones(VALUES)
    times: dict[str, list[float]] = {"alone": [], "beside it": []}
    for _ in range(ROUNDS):
        for name, seconds in times.items():
            if number == 0:
                os.kill(other, signal.SIGSTOP if name == "alone" else signal.SIGCONT)
            dist.all_reduce(values, group=group)  # starts the threads
            dist.barrier()
            begin, go = time.perf_counter(), torch.ones(1)
            while go:
                for _ in range(20):
                    called = time.perf_counter()
                    dist.all_reduce(values, group=group)
                    seconds.append(time.perf_counter() - called)
                go.fill_(time.perf_counter() - begin < SECONDS)
                dist.broadcast(go, 0)
    if number == 0:
        for name, seconds in times.items():
            parts = [*statistics.quantiles(seconds, n=20)[9::9], max(seconds), statistics.mean(seconds)]
            median, most, longest, mean = (f"{part * 1e6:.0f}" for part in parts)
            print(f"{VALUES >> 18} MB {name}: median {median} us, 95 % {most}, longest {longest}, mean {mean}")
        print(f"bytes of each thread: {extension.load().bytes_of_threads()}")
    dist.destroy_process_group()


def main() -> None:
    other = os.fork()
    if other == 0:
        neighbour()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        rank(int(child == 0), folder, other)
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


if __name__ == "__main__":
    asked(__doc__)
    main()
