"""Trainer's loss on several ranks, and over accumulated batches, is that of a single process and a single batch.

Trainer (4.57 and 5.x, `compute_loss`) multiplies the loss by the number of ranks wherever a model's forward takes
keyword arguments, trusting that it has divided by `num_items_in_batch`, the count over all ranks and all batches of a
step; and it does not divide by the number of these batches. Many models take that count and ignore it
(BertForSequenceClassification is one): their losses and gradients come out too large by the number of ranks and by
that of the batches.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.utils._pytree import tree_map

from cpudist.huggingface.versions import TRANSFORMERS, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

# How much the means over the batches of a Trainer's step count in that over the step, where shares are unequal.
WeightsByTrainer: TypeAlias = "WeakKeyDictionary[Any, Iterator[float]]"

_COMPUTE_LOSS = ["self", "model", "inputs", "return_outputs", "num_items_in_batch"]


def patch(trainer_module: ModuleType, job: Job, weights: WeightsByTrainer) -> None:
    """Change `Trainer.compute_loss`: what a model should have divided, or weighed, is so after it."""
    cls = trainer_module.Trainer
    original: Any = getattr(cls, "compute_loss", None)
    known = original is not None and list(inspect.signature(original).parameters) == _COMPUTE_LOSS
    check_known(trainer_module, known, TRANSFORMERS)

    uses_count: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    @functools.wraps(original)
    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        hands_over = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        multiplies = self.args.average_tokens_across_devices and self.accelerator.num_processes > 1
        divides = getattr(self, "loss_is_scaled_for_ga", None) is False  # Trainer itself, where a subclass says so
        batches = 1 if divides else getattr(self, "current_gradient_accumulation_steps", 1)
        too_large = batches * (self.accelerator.num_processes if multiplies else 1)
        weight = next(weights[self]) if self in weights and model.training else 1.0
        if not (hands_over and too_large > 1 and isinstance(num_items_in_batch, torch.Tensor)):
            return _divide(original(self, model, inputs, return_outputs, num_items_in_batch), 1 / weight)
        if self in uses_count:
            result = original(self, model, inputs, return_outputs, num_items_in_batch)
        else:
            count = num_items_in_batch.as_subclass(_Count)
            count.used = False
            with torch.compiler.set_stance("force_eager"):  # compiled code would not tell
                result = original(self, model, inputs, return_outputs, count)
            uses_count[self] = count.used
        return result if uses_count[self] else _divide(result, too_large / weight)

    job.changes.attribute(cls, "compute_loss", compute_loss)


def _divide(result: Any, number: float) -> Any:
    """What `compute_loss` returns, a loss or one with outputs, with the loss divided by `number`."""
    if number == 1:
        return result
    return (result[0] / number, *result[1:]) if isinstance(result, tuple) else result / number


class _Count(torch.Tensor):
    """A number that remembers whether anybody has computed with it."""

    used: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def plain(leaf: Any) -> Any:
            if not isinstance(leaf, _Count):
                return leaf
            leaf.used = leaf.used or getattr(func, "__name__", "") != "__get__"  # reading its shape is no use of it
            return leaf.as_subclass(torch.Tensor)

        with torch._C.DisableTorchFunctionSubclass():
            return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
