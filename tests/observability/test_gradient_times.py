"""When the gradients of a step are complete."""

import time
from typing import Any

import torch
from observed import Observed

from cpudist.observability.gradient_times import GradientTimes
from cpudist.observability.record import RunRecord

LAYER_BYTES = 4 * 1536 * 1024


def _train(layers: list[torch.nn.Module], steps: int, batches: int = 1, waited: float | None = None) -> Any:
    """Train with an optimizer for the first layer, and one for the others; return what the record says of gradients."""
    model = torch.nn.Sequential(*layers)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:1], model[1:])]
    job = Observed()
    record = RunRecord(job)
    times = GradientTimes(job, record)
    job.counter.after_step.append(times.step)
    job.backend.seconds = waited
    for _ in range(steps):
        for _ in range(batches):
            model(torch.ones(2, 1536)).sum().backward()
        for optimizer in optimizers:
            job.backend.seconds = None if waited is None else job.backend.seconds + waited
            optimizer.step()
    times.end()
    job.changes.undo()
    return record.gradient_times


def _layers() -> list[torch.nn.Module]:
    wide, narrow = torch.nn.Linear(1536, 1024, bias=False), torch.nn.Linear(1024, 1536, bias=False)
    narrow.register_full_backward_hook(lambda *_: time.sleep(0.05))
    return [wide, narrow]


def test_groups_in_the_order_in_which_they_are_complete() -> None:
    layers = _layers()
    found = _train(layers, steps=12, batches=2)
    assert found["values"] == 2 * 1536 * 1024
    (first, first_bytes), (last, last_bytes) = found["groups"]
    assert (first_bytes, last_bytes, last) == (LAYER_BYTES, LAYER_BYTES, 0.0)
    assert 0.05 <= first < 0.5
    assert found["waiting"] is None, "the backend does not measure it"
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)


def test_the_communication_wait_of_a_step() -> None:
    assert _train(_layers(), steps=9, waited=0.25)["waiting"] == 0.25


def test_a_short_job_leaves_nothing_behind() -> None:
    layers = _layers()
    assert _train(layers, steps=4) is None
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)
