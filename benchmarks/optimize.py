"""Compare a training step under each means of `cpudist.optimize` alone, and under all of them.

    OMP_NUM_THREADS=2 python benchmarks/optimize.py [--quick]

A step is forward, backward and optimizer of a BERT with 24 million parameters and dropout, 8 x 128 random tokens, in
one process without communication. Prints its time, and as a multiple of that of PyTorch alone in float32, the first
line. The candidates take turns. Each turn is a process of its own: the allocator is chosen when it starts, and neither
kept memory nor Intel's extension can be undone.
"""

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import torch
from usage import asked

import cpudist
from cpudist.bench.between_hosts import SMALL_SHAPE, bert, random_tokens, train_on
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import Candidate, Turns, ratio, take_turns, timed
from cpudist.optimization import ipex, native, operators
from cpudist.pinning.preload import wanted_allocator

BF16 = torch.bfloat16
ALLOCATOR = wanted_allocator({})
TCMALLOC = "tcmalloc"
CANDIDATES = [
    "PyTorch, float32",
    *([TCMALLOC] if ALLOCATOR else []),
    "freed memory kept",
    "fused optimizer",
    "own operators",
    "autocast to bfloat16",
    "optimize, float32",
    "optimize, bfloat16",
    *([f"optimize, bfloat16, {TCMALLOC}"] if ALLOCATOR else []),
    *([] if "--quick" in sys.argv else ["optimize, bfloat16, compiled"]),
    *(["Intel's recipe: bfloat16, weights prepacked, autocast"] if ipex.missing() is None else []),
]


def main() -> None:
    """Let the candidates take turns, and print a table."""
    turns = Turns(rounds=1, calls=1, warm_up=1) if "--quick" in sys.argv[1:] else Turns(rounds=5, calls=3, warm_up=3)
    timings = take_turns({name: in_process(name) for name in CANDIDATES}, turns)
    first = timings[CANDIDATES[0]]
    rows = [[name, time_cell(one), ratio_cell(ratio(one, first))] for name, one in timings.items()]
    print(table([f"torch {torch.__version__}, {torch.get_num_threads()} threads", "time", "times the first"], rows))


def in_process(name: str) -> Candidate:
    """Return a candidate whose steps are made in a process of its own."""
    preload = {"LD_PRELOAD": str(ALLOCATOR)} if TCMALLOC in name else {}

    def measure(calls: int) -> list[float]:
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", name, str(calls)]
        done = subprocess.run(command, env={**os.environ, **preload}, stdout=subprocess.PIPE, check=True, timeout=900)
        return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])]

    return measure


def measure_here(name: str, calls: int, shape: tuple[int, int]) -> list[float]:
    """Return the seconds of steps of a model to which the means of that name are applied."""
    cpudist.init("gloo", pin=False)
    model: Any = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    dtype = torch.float32
    if name == "freed memory kept":
        native.keep_freed()
    elif name == "fused optimizer":
        native.fuse(optimizer)
    elif name == "own operators":
        operators.use(model)
    elif name == "autocast to bfloat16":
        dtype = BF16
    elif name.startswith("optimize"):  # it has an autocast of its own
        cpudist.optimize(model, optimizer, BF16 if "bfloat16" in name else torch.float32, ipex=False)
        if "compiled" in name:
            model.compile()
    elif name.startswith("Intel"):
        dtype = BF16
        native.fuse(optimizer)
        __import__(ipex.PACKAGE).optimize(model, dtype=BF16, optimizer=optimizer, inplace=True)
    return timed(partial(train_on, random_tokens(0, shape), model, optimizer, dtype))(calls)


if __name__ == "__main__":
    asked(__doc__)
    if "--measure" in sys.argv:
        name, calls = sys.argv[-2:]
        print(json.dumps(measure_here(name, int(calls), SMALL_SHAPE if "--quick" in sys.argv else (8, 128))))
    else:
        main()
