"""Patches of Trainer's model, optimizer and loss.

`--use_ipex` takes effect after the optimizer is created and before DDP wraps the model. `--bf16` is accelerate's
autocast, with float32 parameters.

Each function with a parameter `original` returns the replacement for it. `PATCHES` has the reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.utils._pytree import tree_map

from cpudist.huggingface import padding
from cpudist.huggingface.accelerate_patches import clip_by_blocks
from cpudist.huggingface.training_arguments import computing_type
from cpudist.optimization import kernels
from cpudist.patching.undo import replaced

if TYPE_CHECKING:
    from cpudist.huggingface import Context


def wrap_model(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Trainer._wrap_model`: first optimize the model, even if the script has created the optimizer."""
    backend = context.job.backend
    seen: WeakSet[Any] = WeakSet()

    @functools.wraps(original)
    def optimize_and_wrap(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        padding.check(self)
        if training and self.optimizer is not None and self not in seen:
            seen.add(self)
            backend.devices.prepare(self.model)
            _optimize(self, context)
        result = original(self, model, training, dataloader)
        if (handler := self.accelerator.ddp_handler) is not None:  # accelerate passes the handler's values to DDP
            handler.gradient_as_bucket_view = backend.ddp_options().get("gradient_as_bucket_view", False)
        return result

    return optimize_and_wrap


def compute_loss(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Trainer.compute_loss`: the loss is the same on any number of ranks and of accumulated batches.

    Trainer (4.57 and 5.x) relies on the model, or on `compute_loss_func`, to divide by `num_items_in_batch`, the number
    of targets in all batches of a step on all ranks. Many models, such as BertForSequenceClassification, ignore it.
    Their loss is then too large: Trainer multiplies it by the number of ranks, and in a training step does not divide
    it by the number of accumulated batches. The first loss shows whether the number is used. If not, the patch
    sets `model_accepts_loss_kwargs` to False, so Trainer computes a mean. A `compute_loss_func`'s loss is divided here.
    """
    too_large: WeakKeyDictionary[Any, float] = WeakKeyDictionary()  # how many times, by Trainer; 0: it is right

    @functools.wraps(original)
    def compute(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        weight = next(context.weights[self]) if self in context.weights and model.training else 1.0
        gives_count = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        accumulates = self.accelerator.num_processes > 1 or self.args.gradient_accumulation_steps > 1
        if not (gives_count and accumulates and isinstance(num_items_in_batch, torch.Tensor)):
            return _divide(original(self, model, inputs, return_outputs, num_items_in_batch), 1 / weight)
        if self in too_large:
            result = original(self, model, inputs, return_outputs, num_items_in_batch)
        else:
            count = num_items_in_batch.as_subclass(_Count)
            count.used = False
            with torch.compiler.set_stance("force_eager"):  # compiled code would hide whether the count is used
                result = original(self, model, inputs, return_outputs, count)
            too_large[self] = 0.0 if count.used else _factor(original, self, num_items_in_batch)
            if not count.used and self.compute_loss_func is None:
                self.model_accepts_loss_kwargs = False
            elif not count.used and getattr(self, "loss_is_scaled_for_ga", True) is None:  # from transformers 5.20 on
                self.loss_is_scaled_for_ga = False
        if not too_large[self]:
            return result
        # Trainer divides by the accumulated batches itself; before 5.20 not with a compute_loss_func.
        undivided = model.training and self.compute_loss_func is not None and not hasattr(self, "loss_is_scaled_for_ga")
        batches = self.current_gradient_accumulation_steps if undivided else 1
        return _divide(result, too_large[self] * batches / weight)

    return compute


def note_loss(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._maybe_log_save_evaluate`: record first and last loss; average train_loss over ranks."""
    noted = (0, -1)

    @functools.wraps(original)
    def note(self: Any, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        nonlocal noted
        training, step = context.job.record.training, self.state.global_step
        added_up = step - self._globalstep_last_logged  # the steps whose losses are in tr_loss
        ends = step in (training.first + 1, self.state.max_steps) and noted != (id(training), step)
        if ends and added_up > 0 and not self.control.should_log:
            training.losses.append(self.accelerator.gather(tr_loss).mean().item() / added_up)
            noted = id(training), step  # Trainer calls this again at the end of an epoch
        original(self, tr_loss, *args, **kwargs)
        if self.control.should_training_stop or step == self.state.max_steps:
            # Trainer adds the losses not logged yet to train_loss, but only this rank's, weighted by its share.
            tr_loss.fill_(self.accelerator.gather(tr_loss).mean())

    return note


def _factor(original: Callable[..., Any], trainer: Any, count: torch.Tensor) -> float:
    """Return the number by which Trainer multiplies a loss that ignores `count`: measured, because versions differ."""
    one = torch.ones(())
    function = None if trainer.compute_loss_func is None else lambda *args, **kwargs: one
    with replaced(trainer, compute_loss_func=function, label_smoother=None):
        return float(original(trainer, lambda **inputs: {"loss": one}, {"labels": count}, num_items_in_batch=count))


def _optimize(trainer: Any, context: Context) -> None:
    """Apply the optimizations of --use_ipex; without --use_ipex, only record Trainer's own ones."""
    model, optimizer, args = trainer.model, trainer.optimizer, trainer.args
    if args.torch_compile:
        kernels.check_compiling()
    dtype = computing_type(args)  # for accelerate's autocast; prepare_model reports float32 instead of bfloat16
    if args.bf16 and dtype is torch.float32:
        trainer.use_cpu_amp = False  # autocast of transformers 4.57, in addition to accelerate's
    if not args.use_ipex:
        fused = any(group.get("fused") for group in optimizer.param_groups)
        kernels.note(["native", *([f"fused {type(optimizer).__name__}"] if fused else [])], dtype)
        return
    clip_by_blocks(trainer.accelerator)
    no_ipex = kernels.why_not_ipex(args.torch_compile)
    chosen = kernels.note(kernels.apply(model, optimizer, no_ipex, own_operators=args.own_operators), dtype)
    warning = f"warning: --use_ipex: {no_ipex}; going on with " if no_ipex else ""
    kernels.announce(chosen, dtype, no_ipex, warning=warning)


def _divide(result: Any, number: float) -> Any:
    """Divide the loss in the result of `compute_loss`, which is the loss or a tuple that begins with it."""
    if number == 1:
        return result
    return (result[0] / number, *result[1:]) if isinstance(result, tuple) else result / number


class _Count(torch.Tensor):
    """A number that records whether it has been used in a computation."""

    used: bool

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def plain(leaf: Any) -> Any:
            if not isinstance(leaf, _Count):
                return leaf
            leaf.used = leaf.used or getattr(func, "__name__", "") != "__get__"  # reading the shape computes nothing
            return leaf.as_subclass(torch.Tensor)

        with torch._C.DisableTorchFunctionSubclass():
            return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
