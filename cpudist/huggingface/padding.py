"""Leave padding out of Trainer's batches (--trim_padding), or report once what that would gain; count real tokens."""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.optimization import operators, padding

if TYPE_CHECKING:
    from cpudist.huggingface import Context

_STEPS = 10  # The gain is reported after this number of steps.
_LEAST_GAIN = 1.1  # Smaller gains are not reported.
_PASSES = 3  # A forward and a backward pass together take three times as long as the forward pass alone.


class _Batch(NamedTuple):
    """A batch: length of each row, its columns, those that --trim_padding keeps, and its forward pass in seconds."""

    lengths: list[int]
    width: int
    kept: int
    seconds: float


def compute_loss(original: Callable[..., Any], context: Context) -> Callable[..., Any]:
    """Replace `Trainer.compute_loss`: trim batches if the user asks for it, and measure those of the first steps."""
    if context.job.world.device_type != "cpu":  # reading a mask would wait for a lazy device
        return original
    measured: WeakKeyDictionary[Any, list[_Batch]] = WeakKeyDictionary()
    reported: WeakSet[Any] = WeakSet()
    rank = context.job.world.rank

    @functools.wraps(original)
    def compute(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        training, mask, ids = context.job.record.training, inputs.get("attention_mask"), inputs.get("input_ids")
        measures = rank == 0 and model.training and self not in reported
        known = (self.args.trim_padding or measures) and _why_not(self) is None
        kept = padding.columns(inputs, self.model) if known else None
        cut = kept if self.args.trim_padding else None
        begin = time.perf_counter()
        batch = inputs if cut is None else padding.with_columns(inputs, self.model, cut)
        result = original(self, model, batch, return_outputs, num_items_in_batch)
        seconds = time.perf_counter() - begin
        if not model.training:
            return result if cut is None or not return_outputs else _filled_up(result, cut, mask.shape[1])
        if isinstance(mask, torch.Tensor) and mask.dim() == 2:
            lengths, width = mask.sum(1).tolist(), mask.shape[1]
            training.add_batch(len(lengths), sum(lengths))
            if measures:
                batches = measured.setdefault(self, [])
                batches.append(_Batch(lengths, width, kept.stop - kept.start if kept else width, seconds))
                if training.steps >= _STEPS and (times := training.step_seconds()):
                    reported.add(self)
                    skips = operators.LINEAR in context.job.record.optimizations and not self.args.torch_compile
                    _report(self, measured.pop(self), statistics.median(times), skips)
        elif isinstance(ids, torch.Tensor):
            training.add_batch(len(ids), ids.numel())
        return result

    return compute


def check(trainer: Any) -> None:
    """Raise `UserError` if --trim_padding is given and the loss might change by it."""
    if trainer.args.trim_padding and (reason := _why_not(trainer)):
        raise UserError(padding.REFUSED.format("--trim_padding", reason))


def _why_not(trainer: Any) -> str | None:
    """Return why padding cannot be left out; None if the loss stays the same."""
    kind = type(trainer)
    if kind.compute_loss is not sys.modules["transformers.trainer"].Trainer.compute_loss:
        return f"{kind.__name__}.compute_loss may depend on padding"
    return "compute_loss_func may depend on padding" if trainer.compute_loss_func else padding.why_not(trainer.model)


def _filled_up(result: Any, kept: slice, width: int) -> Any:
    """Pad the logits of an evaluation to the width of the untrimmed batch, with -100 as Trainer does."""
    loss, outputs = result
    if (logits := outputs["logits"]).dim() == 3:
        sides = 0, 0, kept.start, width - kept.stop
        outputs["logits"] = torch.nn.functional.pad(logits, sides, value=padding.NO_TARGET)
    return loss, outputs


def _report(trainer: Any, batches: list[_Batch], step: float, skips: bool) -> None:
    """Report the share of padding, the option that leaves it out, and its speed-up for steps of `step` seconds.

    Nothing is reported if cpudist's linear layers leave padding out already (`skips`) and it is more than half of the
    tokens: the measured gain of --trim_padding is then below `_LEAST_GAIN` (docs/performance.md).
    """
    args, remark = trainer.args, ""
    widths = [batch.kept if args.trim_padding else batch.width for batch in batches]
    if len({batch.width for batch in batches}) > 1:  # each batch is padded to its longest row
        strategy = getattr(args, "train_sampling_strategy", None)
        grouped = args.group_by_length if strategy is None else strategy == "group_by_length"
        option = "--group_by_length" if strategy is None else "--train_sampling_strategy group_by_length"
        rows = iter(sorted(length for batch in batches for length in batch.lengths))
        less = widths if grouped else [[next(rows) for _ in batch.lengths][-1] for batch in batches]
    elif (reason := _why_not(trainer)) is None:
        option, less = "--trim_padding", [batch.kept for batch in batches]
    else:
        main = vars(sys.modules["__main__"]).values()
        has_flag = any("pad_to_max_length" in getattr(value, "__dataclass_fields__", ()) for value in main)
        option = "--pad_to_max_length False" if has_flag else "padding each batch to its longest row"
        less, remark = [max(batch.lengths) for batch in batches], f", but {reason}"
    before, after = (
        sum(len(batch.lengths) * width for batch, width in zip(batches, each, strict=True)) for each in (widths, less)
    )
    share = 1 - sum(sum(batch.lengths) for batch in batches) / before
    seconds = statistics.median(batch.seconds for batch in batches)
    passes = min(args.gradient_accumulation_steps * _PASSES * seconds / step, 1)
    gain = 1 / (1 - passes * (1 - after / before))
    if gain >= _LEAST_GAIN and not (skips and share > 0.5):
        told = f"{option} would make steps about {gain:.1f} times as fast{remark}"
        say(f"{100 * share:.0f} % of the tokens are padding; {told}")
