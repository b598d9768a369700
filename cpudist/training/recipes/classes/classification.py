"""What recipes that classify have in common: scores and metrics, their place in the run record, a few predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import Trainer, TrainingArguments

from cpudist.training.recipes.common import outcome

_SHOWN = 8  # predictions printed at the end


def loss(arguments: TrainingArguments) -> Callable[..., Tensor]:
    """What is minimised, for Trainer's `compute_loss_func`: cross entropy over all samples of a step, on all ranks.

    Not the model's own: transformers tells models how many samples a step has, but many (BERT among them) return the
    mean of their batch all the same, which Trainer then multiplies by the number of ranks and does not divide by the
    number of accumulated batches.
    """

    def mean(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        total = torch.nn.functional.cross_entropy(
            outputs.logits.float(), labels, reduction="sum", label_smoothing=arguments.label_smoothing_factor
        )
        return total / (len(labels) if num_items_in_batch is None else num_items_in_batch)

    return mean


def score(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows for `ExactTrainer`: every sample's loss, its label and the class that the model takes it for."""
    logits, labels = outputs.logits.float(), inputs["labels"]
    return {
        "loss": torch.nn.functional.cross_entropy(logits, labels, reduction="none"),
        "targets": torch.ones_like(labels),
        "predictions": logits.argmax(dim=1),
        "labels": labels,
    }


def metrics(rows: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Accuracy, and the F1 of every class averaged over the classes (those that occur, as scikit-learn's macro F1)."""
    labels, predictions = rows["labels"], rows["predictions"]
    return {"accuracy": float((labels == predictions).mean()), "f1": macro_f1(labels, predictions)}


def macro_f1(labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """The mean over all classes that occur in `labels` or `predictions` of 2 * right / (there + predicted)."""
    classes = 1 + int(max(labels.max(), predictions.max()))
    there, predicted = (np.bincount(ids, minlength=classes) for ids in (labels, predictions))
    right = np.bincount(labels[labels == predictions], minlength=classes)
    occurs = there + predicted > 0
    return float((2 * right[occurs] / (there + predicted)[occurs]).mean())


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Trainer's metrics; the run record gets the accuracy of the first and of the last evaluation, too."""
    measured: dict[str, float] = trainer.evaluate()
    accuracies = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    outcome.add_results({"accuracy": {"first": accuracies[0], "last": measured["eval_accuracy"]}})
    return measured


def some(samples: Dataset) -> Dataset:
    """A few samples to be shown with their predictions, from all over `samples`, which may be sorted by class."""
    step = max(1, len(samples) // _SHOWN)
    return samples.select(range(0, len(samples), step)[:_SHOWN])


def show(trainer: Trainer, samples: Dataset, described: Sequence[str], names: Sequence[str]) -> None:
    """Print what the trained model takes `samples` for, and put that into the run record; for rank 0 alone."""
    rows = [samples[index] for index in range(len(samples))]
    lines = []
    for text, row, guess in zip(described, rows, _predict(trainer, rows), strict=True):
        truth = "" if guess == row["labels"] else f" (it is {names[row['labels']]})"
        lines.append(f"{names[guess]}{truth}: {text}")
    sample = "\n".join(lines)
    outcome.add_results({"sample": sample})
    print(f"what the model takes samples for:\n{sample}", flush=True)


def _predict(trainer: Trainer, rows: Sequence[dict[str, Any]]) -> list[int]:
    model = trainer.model.eval()
    batch = trainer._prepare_inputs(trainer.data_collator(rows))
    with torch.no_grad(), trainer.compute_loss_context_manager():
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    predicted: list[int] = logits.argmax(dim=1).tolist()
    return predicted
