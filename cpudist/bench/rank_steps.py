"""The program of each rank in `cpudist plan --measure`: run the user's script, or train the benchmarks' model.

    cpudist-train -m cpudist.bench.rank_steps FILE [{SCRIPT.py | -m MODULE} [ARGS...]]

Rank 0 writes its run record to FILE once it has timed enough steps. The ranks go on until the command ends the job.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cpudist import api, job, optimization
from cpudist.bench.between_hosts import bert, random_tokens
from cpudist.observability.gradient_times import GradientTimes
from cpudist.optimization import precision
from cpudist.script.target import resolve

_SHAPE = (4, 128)  # samples per rank, tokens per sample
_WARM_UP = 3  # DDP rebuilds its buckets, and memory grows, in these steps.
_STEPS, _SECONDS = 8, 8.0  # Measure at least so many steps and seconds. Gradients are timed until step 11.


def step_hook(file: Path) -> Callable[..., None]:
    """Return a hook that times the steps of all optimizers, and after enough steps writes the run record to `file`."""
    steps, begin = -_WARM_UP, 0.0

    def after_step(*_: Any) -> None:
        nonlocal steps, begin
        steps += 1
        if steps == 0:
            begin = time.perf_counter()
        seconds = time.perf_counter() - begin
        if steps >= _STEPS and seconds >= _SECONDS and not file.exists():
            new = file.with_suffix(".new")
            record = job.require().record.as_dict("running")
            new.write_text(json.dumps(record | {"step_seconds": {"median": seconds / steps}}))
            new.replace(file)

    return after_step


def _train() -> None:
    """Train the benchmarks' model with `cpudist.optimize`, until the job is ended."""
    world = api.init()
    model = bert()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-5)
    dtype = torch.bfloat16 if precision.has_bf16() else torch.float32
    model, optimizer = optimization.optimize(model, optimizer, dtype)
    wrapped = api.wrap(model)
    tokens = random_tokens(world.rank, _SHAPE)
    while True:
        wrapped(input_ids=tokens, labels=tokens).loss.backward()
        api.step(optimizer)
        optimizer.zero_grad()


def main() -> None:
    file, *words = sys.argv[1:]
    if api.init().rank == 0:
        running = job.require()
        running.observers.add(GradientTimes(running, running.record))
        register_optimizer_step_post_hook(step_hook(Path(file)))
    if not words:
        _train()
    module = words[0] == "-m"
    target, *arguments = words[1:] if module else words
    resolve(target, arguments, module=module)()


if __name__ == "__main__":
    main()
