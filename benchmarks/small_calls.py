"""Measure many small allreduces: one by one, coalesced, and beside another thread's large ones.

    mpirun -n 2 python benchmarks/small_calls.py

Prints how many times as long 100 calls of 1 KB take one by one as coalesced, in turns, with the range of the rounds;
and for calls of 4 bytes beside another thread's calls of 96 MB the median and the 99th percentile, also as multiples
of the time that a piece of 256 KB of the large call takes.
"""

import threading
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from usage import asked

import cpudist
from cpudist.bench.report import ratio_cell
from cpudist.bench.timing import Turns, ratio, take_turns, timed, together

MANY = 100
LARGE_BYTES, PIECE_BYTES = 96 << 20, 256 << 10
LARGE_CALLS, SMALL_CALLS = 60, 3000


def main() -> None:
    world = cpudist.init("ccl")
    gloo = dist.new_group(backend="gloo")
    calls = {"one by one": one_by_one, "coalescing manager": with_manager, "all_reduce_coalesced": coalesced}
    tensors = [torch.zeros(256) for _ in range(MANY)]
    candidates = {name: together(timed(partial(call, tensors)), gloo) for name, call in calls.items()}
    timings = take_turns(candidates, Turns(rounds=10, calls=20, warm_up=5))
    if world.rank == 0:
        for name in ("coalescing manager", "all_reduce_coalesced"):
            print(f"one by one / {name}: {ratio_cell(ratio(timings['one by one'], timings[name]))}")
    for _ in range(3):
        alone, small = beside_large()
        if world.rank == 0:
            piece = alone * PIECE_BYTES / LARGE_BYTES
            median, p99 = small[len(small) // 2], small[len(small) * 99 // 100]
            print(
                f"4 bytes beside 96 MB: median {median * 1e6:.0f} µs ({median / piece:.1f} pieces), "
                f"99 % {p99 * 1e6:.0f} µs ({p99 / piece:.1f} pieces)"
            )
    cpudist.shutdown()


def one_by_one(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor)


def with_manager(tensors: list[torch.Tensor]) -> None:
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


def coalesced(tensors: list[torch.Tensor]) -> None:
    dist.all_reduce_coalesced(tensors)


def beside_large() -> tuple[float, list[float]]:
    """Return the seconds of a large call alone, and those of small ones beside another thread's large ones, sorted."""
    groups = [dist.new_group() for _ in range(2)]
    large, small = torch.zeros(LARGE_BYTES // 4), torch.zeros(1)
    alone = min(_seconds(lambda: dist.all_reduce(large)) for _ in range(10))

    def reduce_large() -> None:
        for _ in range(LARGE_CALLS):
            dist.all_reduce(large, group=groups[0])

    thread = threading.Thread(target=reduce_large)
    thread.start()
    times = [_seconds(lambda: dist.all_reduce(small, group=groups[1])) for _ in range(SMALL_CALLS)]
    if not thread.is_alive():
        raise RuntimeError("the large calls ended first; make more of them")
    thread.join()
    return alone, sorted(times)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    asked(__doc__)
    main()
