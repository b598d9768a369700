"""The data of a recipe: its options, reading it, choosing splits and samples, and preparing these for a model.

The first rank of each node reads and prepares it; the others find it in the cache of `datasets`.
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
from datasets import Dataset, Value
from datasets.exceptions import DatasetGenerationError, DatasetsError
from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from cpudist.console import first_line
from cpudist.errors import UserError
from cpudist.version import __version__

Split = TypeVar("Split")

# What data sets call the split to evaluate on; the first one found is taken.
EVALUATION_SPLITS = ("validation", "valid", "val", "dev", "test")


@dataclass
class DataArguments:
    """Which data, and how much of it: the options that every recipe has."""

    dataset_name: str | None = HfArg(default=None, help="A data set: a hub name, or a folder of files.")
    dataset_config_name: str | None = HfArg(default=None, help="Which configuration, if --dataset_name has several.")
    validation_split_percentage: int = HfArg(default=5, help="Percentage to hold out without data to evaluate on.")
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
        """Raise `UserError` unless the options name the data that --do_train and --do_eval need, in one way."""
        if self.dataset_name and (self.train_file or self.validation_file):
            raise UserError("--dataset_name and files exclude each other; give one, not both")
        if arguments.do_train and not (self.train_file or self.dataset_name):
            raise UserError("--do_train needs data; give --train_file or --dataset_name")
        if arguments.do_eval and not (self.validation_file or self.train_file or self.dataset_name):
            raise UserError(
                "--do_eval needs data; give --validation_file or --dataset_name, or --train_file to hold a part out"
            )

    def files(self) -> dict[str, list[str]]:
        """Return `find_files` of the splits "train" and "validation"; a split without files is left out."""
        entries = {"train": self.train_file, "validation": self.validation_file}
        return {split: find_files(names) for split, names in entries.items() if names}

    def read(self, arguments: TrainingArguments, read_files: Callable[[list[str]], Dataset]) -> Mapping[str, Dataset]:
        """Return the splits of --dataset_name, or of the files, each read by `read_files`, or raise `UserError`."""
        if self.dataset_name is not None:
            return load_dataset(self, arguments)
        return {split: read_files(files) for split, files in self.files().items()}


def check_minimum(options: object, minimum: int, *names: str) -> None:
    """Raise `UserError` unless the options called `names` are None or at least `minimum`."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value < minimum:
            raise UserError(f"--{name} must be {minimum} or more, not {value}")


def find_files(entries: Sequence[str]) -> list[str]:
    """Return the absolute paths, each once, of files, of patterns (data/*.txt) and of the text files in folders.

    An entry that names no file, or only empty files, is a `UserError`.
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
            raise UserError(
                f"{entry} names no text file; give one, a folder of them, or a pattern (looked from {Path.cwd()})"
            )
        files += found
    names = list(dict.fromkeys(str(file.resolve()) for file in files))
    if not any(Path(name).stat().st_size for name in names):
        raise UserError(f"{', '.join(entries)} is empty; give a file with text")
    return names


def load_dataset(options: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """Return the splits of --dataset_name, or raise `UserError`."""
    splits: Mapping[str, Dataset] = load(str(options.dataset_name), arguments, name=options.dataset_config_name)
    return splits


def load(path: str, arguments: TrainingArguments, **kwargs: Any) -> Any:
    """Return ``datasets.load_dataset(path, **kwargs)``, on the first rank of each node first, or raise `UserError`."""
    with arguments.main_process_first(local=True, desc="reading data"):
        try:
            return datasets.load_dataset(path, **kwargs)
        except (OSError, ValueError, DatasetsError) as error:
            # A DatasetGenerationError has no reason of its own.
            cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
            raise UserError(
                f"cannot read {kwargs.get('data_files') or path}: {first_line(cause)}; mend them, or give others"
            ) from error


def choose_splits(
    splits: Mapping[str, Split], arguments: TrainingArguments, evaluation_splits: Sequence[str] = EVALUATION_SPLITS
) -> tuple[Split | None, Split | None]:
    """Return the splits to train and to evaluate on, None if not wanted; raise `UserError` where one is missing."""
    found = ", ".join(sorted(splits))
    train, evaluation = splits.get("train"), None
    if arguments.do_train and train is None:
        raise UserError(f"the data has no split train, only {found}; leave --do_train out")
    if arguments.do_eval:
        # Names like validation_matched count too.
        names = [name for wanted in evaluation_splits for name in sorted(splits) if name.split("_")[0] == wanted]
        evaluation = splits[names[0]] if names else None
        if train is None and evaluation is None:
            raise UserError(
                f"the data has no split {' or '.join(evaluation_splits)}, only {found}; leave --do_eval out"
            )
    return train, evaluation


def hold_out(samples: Dataset, options: DataArguments, arguments: TrainingArguments) -> tuple[Dataset, Dataset]:
    """Divide `samples` into a part to train on and a part to evaluate on; fewer than two are a `UserError`."""
    if len(samples) < 2:
        raise UserError("the data is too short to hold out a part of it; give more, or data to evaluate on")
    seed = arguments.seed if arguments.data_seed is None else arguments.data_seed
    size = max(1, int(options.validation_split_percentage / 100 * len(samples)))
    parts = samples.train_test_split(test_size=size, seed=seed)
    return parts["train"], parts["test"]


def limit(samples: Dataset | None, count: int | None, shuffle_seed: int | None = None) -> Dataset | None:
    """Return at most `count` samples (None: all): the first ones, or with a seed, some at random."""
    if samples is None or count is None or count >= len(samples):
        return samples
    if shuffle_seed is not None:
        # In memory: otherwise every rank would write a file of indices into the cache.
        samples = samples.shuffle(seed=shuffle_seed, keep_in_memory=True)
    return samples.select(range(count))


def check_column(samples: Dataset, name: str, option: str) -> str:
    """Return `name`; raise `UserError` unless it is a column of `samples`."""
    if name not in samples.column_names:
        raise UserError(f"{option}: there is no column {name}; {describe_columns(samples)}")
    return name


def string_columns(samples: Dataset) -> list[str]:
    """Return the names of the columns that hold strings."""
    kinds = ("string", "large_string")
    return [name for name, kind in samples.features.items() if isinstance(kind, Value) and kind.dtype in kinds]


def describe_columns(samples: Dataset) -> str:
    """Return the names of the columns, one of which a user is to name."""
    return f"name one of: {', '.join(samples.column_names)}"


def map_cached(
    samples: Dataset,
    function: Callable[..., dict[str, Any]],
    options: Mapping[str, Any],
    arguments: TrainingArguments,
    desc: str,
    **kwargs: Any,
) -> Dataset:
    """Return ``samples.map(function)``; the first rank of each node computes it, the others read it from the cache.

    Args:
        samples, desc, kwargs: as for ``Dataset.map``.
        function: makes a batch of columns of a batch of columns and `options`; they replace the former columns.
        options: all that the result depends on besides `samples`.
        arguments: for the order of the ranks.
    """
    # datasets would hash a tokenizer by its pickle, which changes with use, so that the cache is missed.
    key = fingerprint(samples._fingerprint, function.__qualname__, *options, *options.values())
    if not samples.cache_files:  # datasets caches only what comes from files
        cache = Path(datasets.config.HF_DATASETS_CACHE) / "cpudist"
        cache.mkdir(parents=True, exist_ok=True)
        kwargs["cache_file_name"] = str(cache / f"{key}.arrow")
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
    """Return a hash of `parts` and cpudist's version, 32 hexadecimal digits, the same on all ranks and in all runs.

    A tokenizer is hashed by what it does, anything else by its `repr`.
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
    del content["truncation"], content["padding"]  # set by the latest call
    special = [part.special_tokens_map, part.padding_side, part.model_input_names]
    return json.dumps([content, repr(special)])


def _is_visible_text(path: Path, folder: Path) -> bool:
    """Return whether `path` is a text file (as for git: no zero byte near its start) and not hidden below `folder`."""
    if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)
