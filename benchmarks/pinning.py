"""Compare training steps of pinned and unpinned jobs of the same processes.

    OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 benchmarks/pinning.py
    OMP_NUM_THREADS=1 [I_MPI_PIN=off] mpirun -n 2 python benchmarks/pinning.py
    OMP_NUM_THREADS=1 srun --ntasks 2 --cpu-bind=none python benchmarks/pinning.py

The jobs take turns in the same processes, so both have the same machine, memory and libraries. Rank 0 prints the median
over the rounds of the ratio of the median steps, and its range. The first round is not counted. Without OMP_NUM_THREADS
unpinned ranks compute with as many threads as there are cores each.
"""

import os
import statistics
import sys
import time

import torch
from usage import asked

import cpudist

ROUNDS, STEPS, WARM_UP = 12, 40, 10


def make_model() -> torch.nn.Module:
    """Return eight layers with the same weights on all ranks."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(768, 768), torch.nn.GELU())]
    return torch.nn.Sequential(*layers)


def median_step(pin: bool) -> tuple[int, float, str]:
    """Run a job; return this rank, the median step in milliseconds, and its number of threads and CPUs in words."""
    world = cpudist.init("ccl", pin=pin)
    model = cpudist.wrap(make_model())
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(256, 768)
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    got = f"{torch.get_num_threads()} threads on {len(os.sched_getaffinity(0))} CPUs"
    cpudist.shutdown()
    return world.rank, 1e3 * statistics.median(times[WARM_UP:]), got


def main() -> None:
    """Run the jobs; rank 0 prints the result."""
    ratios, rank, pinned, free = [], 0, "", ""
    for number in range(ROUNDS + 1):
        # The order changes from round to round.
        turns = {pin: median_step(pin) for pin in ((True, False) if number % 2 else (False, True))}
        (rank, with_pins, pinned), (_, without, free) = turns[True], turns[False]
        ratios.append(with_pins / without)
    if rank == 0:
        counted = ratios[1:]
        middle, low, high = statistics.median(counted), min(counted), max(counted)
        sys.stdout.write(f"pinned ({pinned}) / not ({free}): {middle:.3f} ({low:.3f} to {high:.3f})\n")


if __name__ == "__main__":
    asked(__doc__)
    main()
