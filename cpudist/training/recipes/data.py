"""The data of a recipe: its options, reading it, choosing splits, and preparing samples.

Every rank gets the same samples. The first rank of each node reads and prepares them; the others find the result in
the cache of `datasets`.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import datasets
from datasets import Dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError
from transformers import PretrainedConfig, PreTrainedTokenizerBase, TrainingArguments
from transformers.hf_argparser import HfArg

from cpudist.errors import UserError
from cpudist.job import current
from cpudist.version import __version__

Split = TypeVar("Split")

# What data sets call the split to evaluate on; the first that is there is taken.
EVALUATION_SPLITS = ("validation", "valid", "val", "dev", "test")
_LENGTHS = 4  # of padded batches


@dataclass
class DataArguments:
    """Which data, and how much of it: the options that every recipe has."""

    dataset_name: str | None = HfArg(default=None, help="A data set: a hub name, or a folder of files.")
    dataset_config_name: str | None = HfArg(
        default=None, help="The configuration of --dataset_name, where it has several."
    )
    validation_split_percentage: int = HfArg(
        default=5, help="Without data to evaluate on: the percentage of the training data to hold out."
    )
    max_train_samples: int | None = HfArg(default=None, help="Train on at most this many samples.")
    max_eval_samples: int | None = HfArg(default=None, help="Evaluate on at most this many samples.")

    def __post_init__(self) -> None:
        if not 0 < self.validation_split_percentage < 100:
            raise UserError("--validation_split_percentage must lie between 1 and 99")
        check_minimum(self, 1, "max_train_samples", "max_eval_samples")

    def check(self, arguments: TrainingArguments) -> None:
        """Raise `UserError` unless the options name the data that --do_train and --do_eval need."""
        raise NotImplementedError


@dataclass
class FileDataArguments(DataArguments):
    """Which data, and how much of it, where it may also come from files."""

    train_file: list[str] = HfArg(
        default_factory=list, help="Data to train on: files, patterns or folders.", metadata={"nargs": "+"}
    )
    validation_file: list[str] = HfArg(
        default_factory=list, help="Data to evaluate on: files, patterns or folders.", metadata={"nargs": "+"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_file", "validation_file"):
            if isinstance(getattr(self, name), str):  # in a JSON or YAML file of options
                setattr(self, name, [getattr(self, name)])

    def check(self, arguments: TrainingArguments) -> None:
        if self.dataset_name and (self.train_file or self.validation_file):
            raise UserError("--dataset_name and files exclude each other; give one, not both")
        if arguments.do_train and not (self.train_file or self.dataset_name):
            raise UserError("--do_train needs --train_file or --dataset_name")
        if arguments.do_eval and not (self.validation_file or self.train_file or self.dataset_name):
            raise UserError("--do_eval needs --validation_file or --dataset_name, or --train_file to hold a part out")

    def files(self) -> dict[str, list[str]]:
        """The files of the splits "train" and "validation"; a split without files is left out."""
        entries = {"train": self.train_file, "validation": self.validation_file}
        return {split: find_files(names) for split, names in entries.items() if names}


def check_minimum(options: object, minimum: int, *names: str) -> None:
    """Raise `UserError` if one of the options called `names` is given and less than `minimum`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise UserError(f"--{name} must be {minimum} or more, not {value}")


def find_files(entries: Sequence[str]) -> list[str]:
    """The paths that `entries` name: files, patterns (data/*.txt), or folders with all text files below them.

    Raises `UserError` if an entry names no file, or if all files are empty.
    """
    files: list[Path] = []
    for entry in entries:
        path = Path(entry).expanduser()
        if path.is_file():
            found = [path]
        elif path.is_dir():
            found = [name for name in sorted(path.rglob("*")) if _is_visible_text(name, path)]
        else:
            found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
        if not found:
            raise UserError(f"{entry} names no text file (looked from {Path.cwd()})")
        files += found
    names = list(dict.fromkeys(str(file.resolve()) for file in files))
    if not any(Path(name).stat().st_size for name in names):
        raise UserError(f"nothing to read: {', '.join(entries)} is empty")
    return names


def load_dataset(options: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """The splits of --dataset_name; raises `UserError` with the reason if it cannot be read."""
    splits: Mapping[str, Dataset] = load(str(options.dataset_name), arguments, name=options.dataset_config_name)
    return splits


def load_files(files: list[str], builder: str, arguments: TrainingArguments, **kwargs: Any) -> Dataset:
    """The samples in `files` as `builder` of datasets ("text", "csv" …) reads them; raises `UserError` if it cannot."""
    return load(builder, arguments, data_files={"train": files}, split="train", **kwargs)


def load(path: str, arguments: TrainingArguments, **kwargs: Any) -> Any:
    """``datasets.load_dataset(path, **kwargs)``; raises `UserError` with the reason if the data cannot be read."""
    with arguments.main_process_first(local=True, desc="reading data"):
        try:
            return datasets.load_dataset(path, **kwargs)
        except (OSError, ValueError, DatasetsError) as error:
            # DatasetGenerationError itself says nothing; its cause does.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
            reason = (str(cause).strip() or repr(cause)).splitlines()[0]
            raise UserError(f"cannot read {kwargs.get('data_files') or path}: {reason}") from error


def choose_splits(
    splits: Mapping[str, Split], arguments: TrainingArguments, evaluation_splits: Sequence[str] = EVALUATION_SPLITS
) -> tuple[Split | None, Split | None]:
    """The split "train" and the split to evaluate on; None for one that is not there, or not wanted.

    Raises `UserError` if there is nothing to train on, or nothing to evaluate on or to hold out a part of.
    """
    found = ", ".join(sorted(splits))
    train, evaluation = splits.get("train"), None
    if arguments.do_train and train is None:
        raise UserError(f"the data has no split train, only {found}")
    if arguments.do_eval:
        # Also names like validation_matched.
        names = [name for wanted in evaluation_splits for name in sorted(splits) if name.split("_")[0] == wanted]
        evaluation = splits[names[0]] if names else None
        if train is None and evaluation is None:
            raise UserError(f"the data has no split {' or '.join(evaluation_splits)}, only {found}")
    return train, evaluation


def hold_out(samples: Dataset, options: DataArguments, arguments: TrainingArguments) -> tuple[Dataset, Dataset]:
    """`samples` in two parts drawn by the seed, the second of --validation_split_percentage of them, at least one.

    Raises `UserError` if there are fewer than two samples.
    """
    if len(samples) < 2:
        raise UserError("the data is too short to hold out a part of it; give more, or data to evaluate on")
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    size = max(1, int(options.validation_split_percentage / 100 * len(samples)))
    parts = samples.train_test_split(test_size=size, seed=seed)
    return parts["train"], parts["test"]


def limit(samples: Dataset | None, count: int | None, shuffle_seed: int | None = None) -> Dataset | None:
    """The first `count` samples, or with `shuffle_seed` as many from all over the data; all of them for None."""
    if samples is None or count is None or count >= len(samples):
        return samples
    if shuffle_seed is not None:
        # In memory: with a file of indices in the cache, every rank would write it.
        samples = samples.shuffle(seed=shuffle_seed, keep_in_memory=True)
    return samples.select(range(count))


def check_column(samples: Dataset, name: str, option: str) -> str:
    """`name` if it is a column of `samples`; raises `UserError` with the columns if it is not."""
    if name not in samples.column_names:
        raise UserError(f"{option}: there is no column {name}; {describe_columns(samples)}")
    return name


def describe_columns(samples: Dataset) -> str:
    """The names of the columns, for error messages."""
    return f"the columns are: {', '.join(samples.column_names)}"


def max_length(wanted: int, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> int:
    """The tokens of a sample: `wanted`, or as many as tokenizer and model take if that is less."""
    positions = getattr(config, "max_position_embeddings", None) or 0  # with relative positions: none, 0 or -1
    return int(min(length for length in (wanted, tokenizer.model_max_length, positions) if length > 0))


def padding_multiple(longest: int) -> int | None:
    """A collator's ``pad_to_multiple_of``: at most 4 lengths up to `longest` tokens; None where any length will do."""
    if not needs_fixed_shapes():
        return None
    return next(longest // lengths for lengths in range(_LENGTHS, 0, -1) if longest % lengths == 0)


def needs_fixed_shapes() -> bool:
    """Whether the job's backend compiles a program for each shape of a tensor, which takes longer than many steps."""
    job = current()
    return job is not None and job.backend.fixed_shapes


def map_cached(
    samples: Dataset,
    function: Callable[..., dict[str, Any]],
    options: Mapping[str, Any],
    arguments: TrainingArguments,
    desc: str,
    **kwargs: Any,
) -> Dataset:
    """``samples.map(function)``, computed by the first rank of each node and read from the cache by the others.

    Args:
        function: from a batch of columns and `options` to a batch of the columns that replace them.
        options: all that the result depends on besides `samples`.
        desc: what the progress bar says.
        kwargs: further arguments of ``Dataset.map``.
    """
    # Not left to datasets, which hashes a tokenizer by its pickle: that changes with use, and the cache is missed.
    key = fingerprint(samples._fingerprint, function.__qualname__, *options, *options.values())
    with arguments.main_process_first(local=True, desc=desc):
        return samples.map(
            function,
            fn_kwargs=dict(options),
            batched=True,
            remove_columns=samples.column_names,
            new_fingerprint=key,
            desc=desc,
            **kwargs,
        )


def fingerprint(*parts: Any) -> str:
    """A hash of `parts` and of cpudist's version that is the same on all ranks and in all runs: 32 hexadecimal digits.

    A tokenizer counts by what it does; anything else by its `repr`.
    """
    digest = hashlib.sha256(__version__.encode())
    for part in parts:
        content = _identity(part).encode()
        digest.update(b"%d:%b" % (len(content), content))
    return digest.hexdigest()[:32]


def _identity(part: Any) -> str:
    backend = getattr(part, "backend_tokenizer", None)
    if backend is None:
        return repr(part)
    content = json.loads(backend.to_str())
    del content["truncation"], content["padding"]  # those of the latest call
    special = [part.special_tokens_map, part.padding_side, part.model_input_names]
    return json.dumps([content, repr(special)])


def _is_visible_text(path: Path, folder: Path) -> bool:
    """Whether `path` is a text file, as git decides (no zero byte near its start), and not hidden below `folder`."""
    if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)
