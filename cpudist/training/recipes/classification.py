"""What classify and images share: labels as classes, metrics, predictions to look at.

A label is a string, a whole number, or a ClassLabel of datasets. Its name is what the data calls it. The names go into
the model's configuration (id2label), which then says what the outputs mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Value
from numpy.typing import NDArray
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import models
from cpudist.training.recipes.data import check_column, choose_splits, hold_out, limit
from cpudist.training.recipes.script import Options, add_first_and_last, report_sample

_NAMES_IN_ERRORS = 20
_PREDICTIONS_SHOWN = 8


@dataclass(frozen=True)
class Labelled:
    """Samples with labels in `column`, and the class ids of its values."""

    samples: Dataset
    column: str
    ids: dict[Any, int]


def choose_samples(
    splits: Mapping[str, Dataset], column: str, config: PretrainedConfig | None, options: Options
) -> tuple[list[str], Labelled | None, Labelled | None]:
    """Choose classes, samples to train on, which may exist without --do_train, and samples to evaluate on.

    Args:
        splits: the data.
        column: the column with the labels.
        config: the configuration of the pretrained model; None for a new model.
        options: the recipe's.

    Raises:
        UserError: data is missing, or labels are missing, too few or unknown.
    """
    data, arguments = options.data, options.training
    train, evaluation = choose_splits(splits, arguments)
    if config is None and train is None:
        raise UserError("there is nothing to train on; give --model_name_or_path to evaluate a pretrained model")
    # Before a part is held out: all samples with a rare label may be in that part.
    train_names = {} if train is None else names_by_value(train, column)
    if arguments.do_eval and evaluation is None:
        train, evaluation = hold_out(train, data, arguments)
    evaluation_names = {} if evaluation is None else names_by_value(evaluation, column)
    trained = train_names.values() if config is None or arguments.do_train else ()
    names = choose_names(trained, evaluation_names.values(), None if config is None else class_names(config))

    def labelled(samples: Dataset | None, count: int | None, by_value: Mapping[Any, str]) -> Labelled | None:
        samples = limit(samples, count, arguments.seed)  # at random: a file may be sorted by class
        ids = {value: names.index(name) for value, name in by_value.items() if name in names}
        return None if samples is None else Labelled(samples, column, ids)

    train_samples = labelled(train, data.max_train_samples, train_names)
    return names, train_samples, labelled(evaluation, data.max_eval_samples, evaluation_names)


def names_by_value(samples: Dataset, column: str) -> dict[Any, str]:
    """Return the name of each label, in the order of the classes, as declared or sorted, or raise `UserError`."""
    kind = samples.features[check_column(samples, column, "--label_column")]
    if not isinstance(kind, (ClassLabel, Value)) or "float" in kind.dtype:
        raise UserError(f"the column {column} holds {kind}; labels must be strings or whole numbers")
    # Dataset.unique would first write all columns of a held-out part into the cache.
    values = list(dict.fromkeys(samples.select_columns(column)[:][column]))
    if any(value in (None, "") for value in values):
        raise UserError(f"some samples have no label in the column {column}; remove them or complete them")
    if not isinstance(kind, ClassLabel):
        return dict(sorted(((value, str(value)) for value in values), key=lambda pair: _order(pair[1])))
    if min(values) < 0:  # as in many test splits of the hub
        raise UserError(
            f"the column {column} holds {min(values)}, which is no label; name another --label_column, or another split"
        )
    return {value: kind.int2str(value) for value in sorted(values)}


def choose_names(train: Iterable[str], evaluation: Iterable[str], known: Sequence[str] | None) -> list[str]:
    """Choose the names of the classes, in the order of the model's outputs.

    Args:
        train: names in the data to train on; empty if the model is only evaluated.
        evaluation: names in the data to evaluate on.
        known: the names of a pretrained model, which hold where it is not trained.

    Raises:
        UserError: a name is in `evaluation` alone, or there is a single class.
    """
    found, wanted = list(dict.fromkeys(train)), list(dict.fromkeys(evaluation))
    if not found:
        return _of_model(wanted, list(known or ()))
    unknown = [name for name in wanted if name not in set(found)]
    if unknown:
        raise UserError(
            f"label {unknown[0]!r} is in the validation data, but not in the training data ({_list(found)}); "
            "train on samples of it, or remove it"
        )
    if len(found) < 2:
        raise UserError(f"there is only one label, {found[0]!r}; give samples with two labels at least")
    # A model that knows the same classes keeps its own order.
    return list(known) if known and set(known) == set(found) else found


def class_names(config: PretrainedConfig) -> list[str]:
    """Return the names of the classes of a pretrained model, in the order of its outputs."""
    return [str(config.id2label[index]) for index in sorted(config.id2label)]


def label_config(names: Sequence[str]) -> dict[str, Any]:
    """Return the names of classes as arguments of a model's configuration."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def _of_model(wanted: list[str], known: list[str]) -> list[str]:
    unknown = [name for name in wanted if name not in set(known)]
    if not unknown:
        return known
    numbers = [str(number) for number in range(len(known))]
    if set(wanted) <= set(numbers):  # the data has the numbers of the model's names
        return numbers
    raise UserError(
        f"label {unknown[0]!r} is unknown to the model ({_list(known)}); evaluate a model that was trained on it"
    )


def _order(name: str) -> tuple[int, int, str]:
    """Return a key that sorts whole numbers first, by value, and then other names."""
    digits = name.removeprefix("-")
    return (0, int(name), name) if digits.isascii() and digits.isdigit() else (1, 0, name)


def _list(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _NAMES_IN_ERRORS else ""
    return ", ".join(names[:_NAMES_IN_ERRORS]) + more


def load_classifier(auto_class: Any, name: str, arguments: TrainingArguments, names: Sequence[str]) -> PreTrainedModel:
    """Load a pretrained model; it gets a new head unless it has one for as many classes as `names`."""
    options = {"ignore_mismatched_sizes": True, "problem_type": "single_label_classification"}
    return models.load_model(auto_class, name, arguments, **options, **label_config(names))


def make_trainer(model: Any, arguments: TrainingArguments, *args: Any, **kwargs: Any) -> models.ExactTrainer:
    """Make a Trainer with the loss and the metrics of a classifier; the arguments are Trainer's own."""
    kwargs["compute_loss_func"] = partial(models.mean_loss, label_smoothing=arguments.label_smoothing_factor)
    return models.ExactTrainer(model, arguments, *args, score=score, metrics=metrics, **kwargs)


def score(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make rows for `ExactTrainer` of logits, shape (batch, classes): losses, labels and the predicted classes."""
    logits, labels = outputs.logits.float(), inputs["labels"]
    return {
        "loss": torch.nn.functional.cross_entropy(logits, labels, reduction="none"),
        "targets": torch.ones_like(labels),
        "predictions": logits.argmax(dim=1),
        "labels": labels,
    }


def metrics(rows: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Return the accuracy and the macro F1 of "labels" and "predictions", each of shape (samples,)."""
    labels, predictions = rows["labels"], rows["predictions"]
    return {"accuracy": float((labels == predictions).mean()), "f1": macro_f1(labels, predictions)}


def macro_f1(labels: NDArray[Any], predictions: NDArray[Any]) -> float:
    """Return the mean of the F1 over all classes that occur, as scikit-learn does, of ids of shape (samples,)."""
    classes = 1 + int(max(labels.max(), predictions.max()))
    there, predicted = (np.bincount(ids, minlength=classes) for ids in (labels, predictions))
    right = np.bincount(labels[labels == predictions], minlength=classes)
    occurs = there + predicted > 0
    return float((2 * right[occurs] / (there + predicted)[occurs]).mean())


def evaluate(trainer: Trainer) -> dict[str, float]:
    """Evaluate; the run record gets the accuracy of the first and of the last evaluation."""
    measured: dict[str, float] = trainer.evaluate()
    add_first_and_last(trainer, "accuracy", lambda entry: entry["eval_accuracy"])
    return measured


def select_examples(samples: Dataset) -> Dataset:
    """Return up to 8 samples to show with their predictions, from all over `samples`, which may be sorted by class."""
    step = max(1, len(samples) // _PREDICTIONS_SHOWN)
    return samples.select(range(0, len(samples), step)[:_PREDICTIONS_SHOWN])


def report_predictions(trainer: Trainer, samples: Dataset, described: Sequence[str], names: Sequence[str]) -> None:
    """Print the predictions for a few prepared samples, `described` in a line each; call it on rank 0 alone."""
    rows = [samples[index] for index in range(len(samples))]
    lines = []
    for text, row, guess in zip(described, rows, _predict(trainer, rows), strict=True):
        truth = "" if guess == row["labels"] else f" (it is {names[row['labels']]})"
        lines.append(f"{names[guess]}{truth}: {text}")
    report_sample("what the model takes samples for", "\n".join(lines))


def _predict(trainer: Trainer, rows: Sequence[dict[str, Any]]) -> list[int]:
    model = trainer.model.eval()
    batch = trainer._prepare_inputs(trainer.data_collator(rows))
    with torch.no_grad(), trainer.compute_loss_context_manager():
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    predicted: list[int] = logits.argmax(dim=1).tolist()
    return predicted
