"""When the gradients of a step are complete."""

from __future__ import annotations

import time

import pytest
import torch

from cpudist.changes import Changes
from cpudist.job.gradient_times import GradientTimes

LAYER_BYTES = 4 * 1536 * 1024


def _train(times: GradientTimes, layers: list[torch.nn.Module], steps: int, batches: int = 1) -> None:
    """Train with an optimizer for the first layer, and one for the others."""
    model = torch.nn.Sequential(*layers)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:1], model[1:])]
    changes = Changes()
    times.begin(lambda: 0.0, changes)
    for _ in range(steps):
        for _ in range(batches):
            model(torch.ones(2, 1536)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    changes.undo()


def _layers() -> list[torch.nn.Module]:
    wide, narrow = torch.nn.Linear(1536, 1024, bias=False), torch.nn.Linear(1024, 1536, bias=False)
    narrow.register_full_backward_hook(lambda *_: time.sleep(0.05))
    return [wide, narrow]


def test_groups_in_the_order_in_which_they_are_complete() -> None:
    times, layers = GradientTimes(), _layers()
    _train(times, layers, steps=12, batches=2)
    assert times.found is not None
    assert times.found["values"] == 2 * 1536 * 1024
    (first, first_bytes), (last, last_bytes) = times.found["groups"]
    assert (first_bytes, last_bytes, last) == (LAYER_BYTES, LAYER_BYTES, 0.0)
    assert 0.05 <= first < 0.5
    assert times.found["waiting"] == 0
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)


def test_a_tied_weight_leaves_first() -> None:
    times, layers = GradientTimes(), _layers()
    times.tied.add(layers[0].weight)
    _train(times, layers, steps=12)
    assert times.found is not None
    (first, _), (second, _) = times.found["groups"]
    assert first == pytest.approx(second) != 0.0


def test_a_short_job_leaves_nothing_behind() -> None:
    times, layers = GradientTimes(), _layers()
    _train(times, layers, steps=4)
    assert times.found is None
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)
