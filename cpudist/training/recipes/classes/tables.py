"""Tables of labelled text (CSV, JSON, JSON lines, the hub) to token ids: reading, finding the columns, tokenising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.common import sources, splits
from cpudist.training.recipes.language import text

# Without this, pandas takes the label "None" and the text "NA" for missing.
_CSV = {"keep_default_na": False}
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", _CSV),
    ".tsv": ("csv", {**_CSV, "sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
}
# What data sets call the columns of text; the second is None where there is but one.
_USUAL: tuple[tuple[str, str | None], ...] = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", None),
    ("sentence", None),
    ("sentence1", None),
)


def read_files(files: Mapping[str, Sequence[str]], arguments: TrainingArguments) -> dict[str, Dataset]:
    """The table in the files of each part; parts without a file are left out."""
    return {part: _read(text.find_files(entries), arguments) for part, entries in files.items() if entries}


def text_columns(samples: Dataset, wanted: tuple[str | None, str | None], label: str) -> tuple[str, str | None]:
    """The columns of text, and of the text that goes with it: those that the user wants, the usual, or the only one."""
    first, second = wanted
    if second is not None:
        splits.column(samples, second, "--text_pair_column")
    if first is not None:
        return splits.column(samples, first, "--text_column"), second
    names = samples.column_names
    for usual, pair in _USUAL:
        if usual in names and usual != label and second in (None, pair) and (pair is None or pair in names):
            return usual, pair
    strings = [name for name in names if _is_string(samples, name) and name not in (label, second)]
    if len(strings) == 1:
        return strings[0], second
    raise UserError(f"which column holds the text? give --text_column; {splits.columns(names)}")


class Tokenising:
    """Tables to samples with token ids and "labels", cached under a name that every rank and run finds again."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, columns: tuple[str, str | None], arguments: TrainingArguments
    ) -> None:
        self._tokenizer = tokenizer
        self._columns = columns
        self._arguments = arguments
        # Now, before it is used: a tokenizer keeps the last call's settings, and only one rank will call it.
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._identity = backend.to_str() if backend else repr(tokenizer)

    def __call__(
        self, samples: Dataset, label: str, ids: dict[Any, int], max_length: int, pad: bool | str = False
    ) -> Dataset:
        """`samples` cut to `max_length` tokens; with `pad="max_length"`, all of them as long as that."""
        options = {"columns": self._columns, "label": label, "ids": ids, "max_length": max_length, "pad": pad}
        key = Hasher.hash([samples._fingerprint, self._identity, repr(options)])
        with self._arguments.main_process_first(local=True, desc="tokenising"):
            return samples.map(
                _tokenise,
                fn_kwargs={"tokenizer": self._tokenizer, **options},
                batched=True,
                remove_columns=samples.column_names,
                new_fingerprint=key,
                desc="Tokenising",
            )

    def evaluated(self, samples: Dataset, label: str, ids: dict[Any, int], max_length: int) -> Dataset:
        """All samples as long as the longest: what a batch is padded to must not depend on what else is in it."""
        tokens = self(samples, label, ids, max_length)
        longest = max(len(sample) for sample in tokens["input_ids"])
        return self(samples, label, ids, longest, pad="max_length")


def strings(values: Sequence[Any]) -> list[str]:
    """The text in a column; a number is its digits, nothing is an empty text."""
    return ["" if value is None else str(value) for value in values]


def _read(files: list[str], arguments: TrainingArguments) -> Dataset:
    suffixes = {Path(name).suffix.lower() for name in files}
    if len(suffixes) > 1 or not suffixes <= _FORMATS.keys():
        raise UserError(f"cannot read {', '.join(files[:3])}: all files must be of one of {', '.join(_FORMATS)}")
    name, options = _FORMATS[suffixes.pop()]
    return sources.load(arguments, name, data_files={"train": files}, split="train", **options)


def _is_string(samples: Dataset, column: str) -> bool:
    kind = samples.features[column]
    return isinstance(kind, Value) and kind.dtype in ("string", "large_string")


def _tokenise(
    batch: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    columns: tuple[str, str | None],
    label: str,
    ids: dict[Any, int],
    max_length: int,
    pad: bool | str,
) -> dict[str, Any]:
    texts = [strings(batch[name]) for name in columns if name is not None]
    tokens = tokenizer(*texts, truncation=True, max_length=max_length, padding=pad)
    return {**tokens, "labels": [ids[value] for value in batch[label]]}
