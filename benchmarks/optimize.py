"""Compare a training step under the options of `cpudist.optimize`, and under Intel's own recipe.

    [mpirun -n 2] python benchmarks/optimize.py [--quick]

A step is forward, backward with gradients reduced by ccl, and optimizer of a BERT with 24 million parameters, 8 x 128
random tokens per rank. Prints its time, and as a multiple of that of PyTorch alone in float32, the first line. The
candidates of a table take turns; the tables follow each other, because what they change in the process cannot be
undone: the allocator keeps freed memory, then Intel's extension is imported, where it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from comparison import compare

import cpudist
from cpudist import job
from cpudist.bench.between_hosts import SMALL_SHAPE, bert, random_tokens, train_on
from cpudist.bench.timing import Timings, Turns, timed
from cpudist.optimization import ipex, native, products

Options = dict[str, Any]  # of `cpudist.optimize`
PLAIN, RECIPE = "float32, as PyTorch makes it", "Intel's recipe: bfloat16, weights prepacked, autocast"
BF16 = torch.bfloat16
CHOICES: dict[str, Options] = {
    "float32": {},
    "bfloat16, autocast": {"dtype": BF16, "autocast": True},
    "bfloat16, master weights": {"dtype": BF16},
}
COMPILED: dict[str, Options] = {"bfloat16, master weights, compiled": {"dtype": BF16, "compile": True}}


def main() -> None:
    """Compare the choices without kept memory, with it, and with Intel's extension."""
    quick = "--quick" in sys.argv[1:]
    world = cpudist.init("ccl")
    tokens = random_tokens(world.rank, SMALL_SHAPE if quick else (8, 128))
    turns = Turns(rounds=2, calls=1, warm_up=1) if quick else Turns(rounds=5, calls=2, warm_up=1)

    def table(title: str, choices: dict[str, Options | str | None], first: Timings | None) -> Timings:
        candidates = {name: timed(step(tokens, choice)) for name, choice in choices.items()}
        return compare(title, candidates, turns, first)

    given = {name: {**options, "ipex": False, "keep_memory": False} for name, options in CHOICES.items()}
    plain = table("freed memory goes back to the kernel", {PLAIN: None, **given}, None)
    kept = {**CHOICES, **({} if quick else COMPILED)}
    table("freed memory is kept", {name: {**options, "ipex": False} for name, options in kept.items()}, plain)
    if ipex.missing() is None:  # its own recipe refuses CPUs that need products of our own
        table("Intel's extension, memory kept", {**CHOICES, **({} if products.missing() else {RECIPE: RECIPE})}, plain)
    cpudist.shutdown()


def step(tokens: torch.Tensor, choice: Options | str | None) -> Callable[[], None]:
    """Return the step of a model of its own: under options of `optimize`, under RECIPE, or None for PyTorch alone."""
    model: Any = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    compiled, autocast = False, torch.float32  # `optimize` has an autocast of its own
    if isinstance(choice, dict):
        options = dict(choice)
        compiled = options.pop("compile", False)
        cpudist.optimize(model, optimizer, **options)
    elif choice == RECIPE:
        autocast = BF16
        native.fuse(optimizer)
        __import__(ipex.PACKAGE).optimize(model, dtype=BF16, optimizer=optimizer, inplace=True)
    model = job.require().backend.wrap(model)
    if compiled:
        model.compile()
    return partial(train_on, tokens, model, optimizer, autocast)


if __name__ == "__main__":
    main()
