"""The model of a recipe: load or make it, make batches of lengths that it takes, train and evaluate it exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from cpudist.console import first_line, one_line
from cpudist.errors import UserError
from cpudist.job import current

IGNORED = -100  # the label of a token or sample that is no target
_LENGTHS = 4  # of padded batches where shapes are fixed


def load_pretrained(auto_class: Any, name: str, **kwargs: Any) -> Any:
    """Return ``auto_class.from_pretrained(name, **kwargs)``, or raise `UserError` with the reason."""
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot load {name}: {first_line(error)}; give a folder, or the hub's name of a model"
        ) from error


def load_tokenizer(*names: str | None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the first of `names` that is not None, or raise `UserError`."""
    return load_pretrained(AutoTokenizer, next(name for name in names if name is not None))


def load_model(auto_class: Any, name: str, arguments: TrainingArguments, **kwargs: Any) -> PreTrainedModel:
    """Load a pretrained model, or raise `UserError`; weights that it lacks are drawn with the seed."""
    # Here, so that ranks draw the same weights: preparing data has advanced the generators of some ranks only.
    set_seed(arguments.seed)
    # float32 whatever the file holds: the optimizer changes these weights.
    return load_pretrained(auto_class, name, dtype=torch.float32, **kwargs)


def new_model(
    auto_class: Any, config: PretrainedConfig, overrides: str | None, arguments: TrainingArguments
) -> PreTrainedModel:
    """Make a model of `config` and --config_overrides, with weights drawn by the seed, or raise `UserError`."""
    set_seed(arguments.seed)
    try:
        if overrides:
            config.update_from_string(overrides)
        return auto_class.from_config(config)
    except ValueError as error:
        given = f" with --config_overrides {overrides}" if overrides else ""
        raise UserError(
            f"cannot make a {config.model_type}{given}: {one_line(str(error))}; choose other sizes"
        ) from error


def max_length(wanted: int, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> int:
    """Return the tokens of a sample: `wanted`, or as many as tokenizer and model take if that is less."""
    positions = getattr(config, "max_position_embeddings", None) or 0  # with relative positions: none, 0 or -1
    return int(min(length for length in (wanted, tokenizer.model_max_length, positions) if length > 0))


def padding_collator(tokenizer: PreTrainedTokenizerBase, longest: int) -> DataCollatorWithPadding:
    """Return a collator that pads to a batch's longest sample, or to one of 4 lengths where shapes are fixed.

    Args:
        tokenizer: says what to pad with.
        longest: tokens of a sample, at most.
    """
    multiple = None
    if needs_fixed_shapes():
        multiple = next(longest // lengths for lengths in range(_LENGTHS, 0, -1) if longest % lengths == 0)
    return DataCollatorWithPadding(tokenizer, pad_to_multiple_of=multiple)


def needs_fixed_shapes() -> bool:
    """Return whether the job's backend compiles a program for each shape of a tensor, which takes long."""
    job = current()
    return job is not None and job.backend.fixed_shapes


class ExactTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose evaluations are the same on any number of ranks; eval_loss is the mean over all targets.

    Trainer averages the losses of batches, although the last one is smaller, or filled up with repeated samples. Here
    every sample counts once, with its own losses and targets.

    Args:
        args, kwargs: Trainer's own arguments.
        score: makes rows of a batch from the model's outputs and inputs: "loss", shape (batch,), the sum of the losses
            of each sample, "targets", shape (batch,), their number, and other tensors whose first axis is the batch.
        metrics: makes named metrics of the rows of all samples, which are in the order of the data.
    """

    def __init__(
        self,
        *args: Any,
        score: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]],
        metrics: Callable[[dict[str, NDArray[Any]]], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs, compute_metrics=self._compute_metrics)
        self._score, self._metrics = score, metrics

    def prediction_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[None, dict[str, Tensor], Tensor]:
        """Return the rows and the targets of a batch, where Trainer expects logits and labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            rows = self._score(model(**inputs), inputs)
        return None, rows, rows["targets"]

    def _compute_metrics(self, gathered: EvalPrediction) -> dict[str, float]:
        rows = gathered.predictions
        loss = float(rows["loss"].astype(np.float64).sum() / rows["targets"].sum())
        return {"loss": loss, **(self._metrics(rows) if self._metrics else {})}


def mean_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Return this batch's part of the mean cross entropy over all targets of a step, for `compute_loss_func`.

    A model's own loss will not do: many, such as BERT's, ignore the number of targets in the step and return the mean
    over their batch, which Trainer takes for a part of the step's mean.

    Args:
        outputs: has `logits`, shape (batch, classes) or (batch, tokens, classes).
        labels: shape (batch,) or (batch, tokens); IGNORED is no target.
        num_items_in_batch: the number of targets in the step; None: that of this batch.
        label_smoothing: as in `torch.nn.functional.cross_entropy`.
    """
    targets = labels != IGNORED
    if needs_fixed_shapes():
        logits, wanted = outputs.logits.flatten(0, -2), labels.flatten()
    else:  # only the logits of targets, which may be few
        logits, wanted = outputs.logits[targets], labels[targets]
    losses = torch.nn.functional.cross_entropy(
        logits.float(), wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    count = targets.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return losses / count.clamp(min=1)  # mlm may mask no token of a batch, by chance
