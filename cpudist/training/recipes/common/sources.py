"""Where samples come from, for every recipe: files, folders or the hub; parts held out; no more than wanted."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError
from transformers import TrainingArguments

from cpudist.errors import UserError

DEFAULT_HELD_OUT = 5  # percent


def load(arguments: TrainingArguments, path: str, **kwargs: Any) -> Any:
    """``datasets.load_dataset``, by the first rank of each node first, whose cache the others read.

    `UserError` with the reason where there is no such data, or no way to read it.
    """
    with arguments.main_process_first(local=True, desc="reading data"):
        try:
            return load_dataset(path, **kwargs)
        except (OSError, ValueError, DatasetsError) as error:
            # A file that cannot be read is the cause of an error that says nothing.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
            reason = (str(cause).strip() or repr(cause)).splitlines()[0]
            raise UserError(f"cannot read {kwargs.get('data_files') or path}: {reason}") from error


def hold_out(samples: Dataset, percentage: int | None, arguments: TrainingArguments) -> tuple[Dataset, Dataset]:
    """`samples` in two parts, the second with `percentage` (default 5) of them, drawn by the seed."""
    percentage = DEFAULT_HELD_OUT if percentage is None else percentage
    if not 0 < percentage < 100:
        raise UserError("--validation_split_percentage must lie between 1 and 99")
    if len(samples) < 2:
        raise UserError("the data is too short to hold a part of it out; give more, or --validation_file")
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    parts = samples.train_test_split(test_size=max(1, int(percentage / 100 * len(samples))), seed=seed)
    return parts["train"], parts["test"]


def at_most(samples: Dataset | None, count: int | None) -> Dataset | None:
    """The first `count` samples, or all of them."""
    return samples if samples is None or count is None else samples.select(range(min(count, len(samples))))
