"""Labels of samples as names: strings, whole numbers or datasets' ClassLabel in a column become ids of named classes.

A label's name is what the data calls it. The names go into the model's configuration (id2label), so that a model
knows later on what its outputs mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from datasets import ClassLabel, Dataset, Value
from transformers import PretrainedConfig

from cpudist.errors import UserError

_SHOWN = 20  # an error lists so many names at most


def names_by_value(samples: Dataset, column: str) -> dict[Any, str]:
    """Each value that occurs in `column` with its name, in the classes' order: the declared one, or sorted."""
    kind = samples.features[column]
    if not isinstance(kind, (ClassLabel, Value)) or "float" in kind.dtype:
        raise UserError(f"the column {column} holds {kind}; labels must be strings or whole numbers")
    # Not `unique`, which would copy all columns of what is held out into the cache.
    values = list(dict.fromkeys(samples.select_columns(column)[:][column]))
    if any(value in (None, "") for value in values):
        raise UserError(f"some samples have no label in the column {column}; remove them or complete them")
    if not isinstance(kind, ClassLabel):
        return dict(sorted(((value, str(value)) for value in values), key=lambda pair: _order(pair[1])))
    if min(values) < 0:  # the hub's test splits often come so
        raise UserError(f"the samples are not labelled: the column {column} holds {min(values)}")
    return {value: kind.int2str(value) for value in sorted(values)}


def settle(train: Iterable[str], evaluation: Iterable[str], known: Sequence[str] | None) -> list[str]:
    """The names of the classes, in the order of the model's outputs, from those that occur in either part.

    Args:
        train: names in the data to train on; empty if the model is only evaluated.
        evaluation: names in the data to evaluate on.
        known: the names that a pretrained model comes with; they count where it is not trained.
    """
    found, wanted = list(dict.fromkeys(train)), list(dict.fromkeys(evaluation))
    if not found:
        return _of_model(wanted, list(known or ()))
    unknown = [name for name in wanted if name not in set(found)]
    if unknown:
        raise UserError(f"label {unknown[0]!r} is in the validation data, but not in the training data: {_list(found)}")
    if len(found) < 2:
        raise UserError(f"there is only one label, {found[0]!r}; there must be at least two to tell apart")
    # A model that has learnt to tell the same classes apart goes on with them in its own order.
    return list(known) if known and set(known) == set(found) else found


def known_names(config: PretrainedConfig) -> list[str]:
    """The names of the classes that a pretrained model tells apart."""
    return [str(config.id2label[index]) for index in sorted(config.id2label)]


def configured(names: Sequence[str]) -> dict[str, Any]:
    """The names as a model's configuration wants them."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def ids_by_value(values: dict[Any, str], names: Sequence[str]) -> dict[Any, int]:
    """From the values in a column to ids."""
    ids = {name: index for index, name in enumerate(names)}
    return {value: ids[name] for value, name in values.items()}


def _of_model(wanted: list[str], known: list[str]) -> list[str]:
    unknown = [name for name in wanted if name not in set(known)]
    if not unknown:
        return known
    numbers = [str(number) for number in range(len(known))]
    if set(wanted) <= set(numbers):  # the model has names where the data has their numbers
        return numbers
    raise UserError(f"label {unknown[0]!r} is unknown to the model, which tells apart: {_list(known)}")


def _order(name: str) -> tuple[int, int, str]:
    """Whole numbers first and as numbers, then the alphabet."""
    digits = name.removeprefix("-")
    return (0, int(name), name) if digits.isascii() and digits.isdigit() else (1, 0, name)


def _list(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
