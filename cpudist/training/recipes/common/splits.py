"""Which samples to train on and which to evaluate on, out of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from datasets import Dataset
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.common import sources

Parts = tuple[Dataset | None, Dataset | None]

_EVALUATION = ("validation", "valid", "val", "dev", "test")  # what data sets call that part, the best first


def choose(parts: Mapping[str, Dataset], percentage: int | None, arguments: TrainingArguments) -> Parts:
    """The part "train", and the one to evaluate on, or else `percentage` of "train" held out for that."""
    train, evaluation = parts.get("train"), None
    for name in _EVALUATION:
        evaluation = next((parts[part] for part in sorted(parts) if part.split("_")[0] == name), None)
        if evaluation is not None:
            break
    if arguments.do_train and train is None:
        raise UserError(f"there is no part named train in the data; its parts are: {', '.join(sorted(parts))}")
    if arguments.do_eval and evaluation is None:
        if train is None:
            raise UserError(f"there is no part to evaluate on in the data; its parts are: {', '.join(sorted(parts))}")
        train, evaluation = sources.hold_out(train, percentage, arguments)
    return train, evaluation if arguments.do_eval else None


def at_most(samples: Dataset | None, count: int | None, arguments: TrainingArguments) -> Dataset | None:
    """`count` samples drawn by the seed, or all of them: the first ones of a sorted file may all be of one class."""
    if count is not None and count < 1:
        raise UserError("--max_train_samples and --max_eval_samples must be 1 or more")
    if samples is None or count is None or count >= len(samples):
        return samples
    # In memory: with a file of indices in the cache, every rank would write it.
    return sources.at_most(samples.shuffle(seed=arguments.seed, keep_in_memory=True), count)


def column(samples: Dataset, name: str, option: str) -> str:
    """`name`, if it is a column of `samples`; `UserError` that lists the columns otherwise."""
    if name not in samples.column_names:
        raise UserError(f"{option}: there is no column {name}; {columns(samples.column_names)}")
    return name


def columns(names: Sequence[str]) -> str:
    return f"the columns are: {', '.join(names)}"
