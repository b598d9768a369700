"""A Trainer whose evaluation is exact on any number of ranks.

Trainer averages the losses of batches. The last batch is smaller, and with several ranks it is filled up with
repeated samples, so the same model gets another loss on another number of ranks. Here every sample brings its
own sum over its targets and their number, and what else the metrics need; repeated samples are dropped when
these are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import EvalPrediction, Trainer

from cpudist.training.recipes.common import outcome

IGNORED = -100  # the label that means "no target here"

Score = Callable[[Any, dict[str, Tensor]], dict[str, Tensor]]
Metrics = Callable[[dict[str, NDArray[Any]]], dict[str, float]]

_LOSS, _TARGETS = "loss", "targets"


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
        return None, rows, rows[_TARGETS]

    def _compute_metrics(self, gathered: EvalPrediction) -> dict[str, float]:
        rows = gathered.predictions
        loss = float(rows[_LOSS].astype(np.float64).sum() / rows[_TARGETS].sum())
        return {_LOSS: loss, **(self._metrics(rows) if self._metrics else {})}


def token_losses(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Rows for `ExactTrainer` from (batch, tokens, vocabulary) logits and (batch, tokens) labels, IGNORED left out."""
    # One sample at a time: in float32, the logits of a batch may be gigabytes.
    sums = [
        torch.nn.functional.cross_entropy(sample.float(), targets, ignore_index=IGNORED, reduction="sum")
        for sample, targets in zip(logits, labels, strict=True)
    ]
    return {_LOSS: torch.stack(sums), _TARGETS: (labels != IGNORED).sum(dim=1)}


def evaluate_language_model(trainer: Trainer) -> dict[str, float]:
    """Trainer's metrics and the perplexity; the run record gets that of the first evaluation, too."""
    metrics: dict[str, float] = trainer.evaluate()
    metrics["perplexity"] = perplexity(metrics["eval_loss"])
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    outcome.add_results({"perplexity": {"first": perplexity(losses[0]), "last": metrics["perplexity"]}})
    return metrics


def perplexity(loss: float) -> float:
    """What a mean loss per token means as a number of equally likely choices."""
    return math.exp(loss) if loss < 700 else math.inf
