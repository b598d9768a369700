"""A Trainer whose evaluation loss is exact on any number of ranks.

Trainer averages the losses of batches. The last batch is smaller, and with several ranks it is filled up with
repeated samples, so the same model gets another loss on another number of ranks. Here every sample brings its
own sum over its targets and their number; repeated samples are dropped when these are gathered.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers import EvalPrediction, Trainer

_IGNORED = -100  # the label that means "no target here"


class LanguageModelTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for causal language models; `evaluate` returns eval_loss, the mean over all targets."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, compute_metrics=_mean_loss)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, Tensor, Tensor]:
        """Per sample the sum of its losses and their number, where Trainer expects logits and labels."""
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager():
            logits = model(**inputs).logits
        sums = [_loss_sum(*sample) for sample in zip(logits, labels, strict=True)]
        return None, torch.stack(sums), (labels[:, 1:] != _IGNORED).sum(dim=1)


def perplexity(loss: float) -> float:
    """What a mean loss per token means as a number of equally likely choices."""
    return math.exp(loss) if loss < 700 else math.inf


def _loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """One sample's summed losses, each token predicted from those before it; alone, as logits are large."""
    return torch.nn.functional.cross_entropy(logits[:-1].float(), labels[1:], ignore_index=_IGNORED, reduction="sum")


def _mean_loss(gathered: EvalPrediction) -> dict[str, float]:
    sums, counts = gathered.predictions, gathered.label_ids
    return {"loss": float(sums.astype("float64").sum() / counts.sum())}
