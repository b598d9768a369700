"""Time the products of a linear layer in bfloat16, with the transposed factor of the weight's gradient copied or not.

    OMP_NUM_THREADS=1 python benchmarks/weight_gradient.py

The layer has M tokens, K inputs and N outputs. PyTorch computes its products by oneDNN. On a core with AMX (Intel Xeon,
torch 2.13) the gradient of the weight, `g.t() @ x`, runs at 440 to 530 GFLOP/s, where the other two products run at 900
to 1 200; with `g.t()` copied first it takes half of the time. So `cpudist.optimize` copies it there. On a core with
AVX512_BF16 (AMD EPYC) all products run at 200, so it does not. "copy" is cpudist's operator, "contiguous" PyTorch's.
"""

import itertools
import time
from collections.abc import Callable

import torch
from usage import asked

from cpudist.bench.report import table
from cpudist.bench.timing import Turns, take_turns
from cpudist.optimization import operators


def timed(call: Callable[[], object]) -> Callable[[int], list[float]]:
    """Return a candidate that measures processor time."""

    def measure(calls: int) -> list[float]:
        times = [time.process_time()]
        for _ in range(calls):
            call()
            times.append(time.process_time())
        return [(after - before) / torch.get_num_threads() for before, after in itertools.pairwise(times)]

    return measure


def main() -> None:
    """Print a line for each shape."""
    operators._load()
    rows = []
    for m, k, n in ((1536, 1024, 1024), (1536, 1024, 4096), (1536, 4096, 1024), (1024, 768, 3072), (512, 512, 2048)):
        x, w, g = (torch.randn(shape).bfloat16() for shape in ((m, k), (n, k), (m, n)))
        copied = g.t().contiguous()
        products = {
            "x @ w.t()": timed(lambda: x @ w.t()),  # noqa: B023
            "g @ w": timed(lambda: g @ w),  # noqa: B023
            "g.t() @ x": timed(lambda: g.t() @ x),  # noqa: B023
            "copied @ x": timed(lambda: copied @ x),  # noqa: B023
            "copy": timed(lambda: torch.ops.cpudist.transposed(g)),  # noqa: B023
            "contiguous": timed(lambda: g.t().contiguous()),  # noqa: B023
        }
        times = [one.median for one in take_turns(products, Turns(rounds=3, calls=3, warm_up=1)).values()]
        speeds = [f"{2 * m * k * n / seconds / 1e9:.0f} GFLOP/s" for seconds in times[:4]]
        rows.append([f"{m} x {k} -> {n}", *speeds, *(f"{1e3 * seconds:.2f} ms" for seconds in times[4:])])
    print(table([f"M x K -> N, torch {torch.__version__}", *products], rows))


if __name__ == "__main__":
    asked(__doc__)
    main()
