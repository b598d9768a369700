"""A Trainer whose losses and metrics are the same on any number of ranks.

Trainer averages the losses of batches. The last batch is smaller, and with several ranks it is filled up with repeated
samples, so the same model gets another loss on another number of ranks. `ExactTrainer` keeps one row per sample, with
the sum of its losses, the number of its targets and what else the metrics need; rows of repeated samples are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import EvalPrediction, Trainer

IGNORED = -100  # the label that means "no target here"

Score = Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]
Metrics = Callable[[dict[str, NDArray[Any]]], dict[str, float]]


class ExactTrainer(Trainer):  # type: ignore[misc]
    """A Trainer that evaluates sample by sample; `evaluate` returns eval_loss, the mean over all targets.

    Args:
        score: what an evaluation keeps of a batch, from the model's outputs and inputs (labels among them): tensors
            with one row per sample, under "loss" the sum of its losses, shape (batch,), under "targets" their number,
            shape (batch,), under other names whatever `metrics` reads.
        metrics: from the rows of all samples, in the order of the data, to named metrics, eval_NAME in the results.
        kwargs: Trainer's own.
    """

    def __init__(self, *, score: Score, metrics: Metrics | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs, compute_metrics=self._compute_metrics)
        self._score = score
        self._metrics = metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, dict[str, Tensor], Tensor]:
        """One batch's rows and targets, where Trainer expects logits and labels."""
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
    """For Trainer's `compute_loss_func`: this batch's part of a step's mean cross entropy over all targets.

    Not the model's own loss: transformers tells models how many targets a step has on all ranks and in all accumulated
    batches, but many (BERT among them) return the mean over their batch all the same. Trainer takes that for such a
    part and multiplies it by the number of ranks.

    Args:
        outputs: with logits, shape (batch, classes) or (batch, tokens, classes).
        labels: shape (batch,) or (batch, tokens); IGNORED is no target.
        num_items_in_batch: the targets of the step; by default those of this batch.
    """
    targets = labels != IGNORED
    losses = torch.nn.functional.cross_entropy(
        outputs.logits[targets].float(), labels[targets], reduction="sum", label_smoothing=label_smoothing
    )
    count = targets.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return losses / count.clamp(min=1)  # by chance, nothing may be masked


def token_losses(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Rows for `ExactTrainer` from (batch, tokens, vocabulary) logits and (batch, tokens) labels, IGNORED left out."""
    # One sample at a time: in float32, the logits of a batch may be gigabytes.
    sums = [
        torch.nn.functional.cross_entropy(sample.float(), targets, ignore_index=IGNORED, reduction="sum")
        for sample, targets in zip(logits, labels, strict=True)
    ]
    return {"loss": torch.stack(sums), "targets": (labels != IGNORED).sum(dim=1)}
