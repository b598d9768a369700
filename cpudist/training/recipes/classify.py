"""Text classification, of single texts or pairs, from CSV or JSON files or the hub, with a pretrained model."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from cpudist.errors import UserError
from cpudist.training.recipes.classes import classification, labels, tables
from cpudist.training.recipes.common import course, models, outcome, shapes, sources, splits
from cpudist.training.recipes.common.arguments import check_training_arguments, checkpoint_to_resume, parse
from cpudist.training.recipes.common.evaluation import ExactTrainer

_SHOWN_CHARACTERS = 100


@dataclass
class ModelArguments:
    """Which model and tokenizer."""

    model_name_or_path: str = field(
        metadata={
            "help": "Pretrained model: a folder or a hub name. A classifier of other classes gets a new head, "
            "and so does a language model."
        }
    )
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer, if not the model's: a folder or a hub name."}
    )


@dataclass
class DataArguments:
    """Which samples, and how much of them."""

    train_file: list[str] = field(
        default_factory=list,
        metadata={"help": "To train on: .csv, .tsv, .json or .jsonl files, or patterns.", "nargs": "+"},
    )
    validation_file: list[str] = field(
        default_factory=list, metadata={"help": "To evaluate on: files or patterns.", "nargs": "+"}
    )
    validation_split_percentage: int | None = field(
        default=None,
        metadata={"help": "Without data to evaluate on: how much of that to train on to hold out (default 5)."},
    )
    dataset_name: str | None = field(default=None, metadata={"help": "Instead of files: a data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration, e.g. sst2 of glue."})
    text_column: str | None = field(
        default=None,
        metadata={"help": "Column with the text (default: text, sentence, sentence1 …, or the only one of strings)."},
    )
    text_pair_column: str | None = field(default=None, metadata={"help": "Column with the second text of a pair."})
    label_column: str = field(default="label", metadata={"help": "Column with the label: strings or whole numbers."})
    max_seq_length: int = field(default=128, metadata={"help": "Longer samples are cut after that many tokens."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on that many samples at most."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on that many samples at most."})


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("classify", __doc__ or "", types, argv)
    check_training_arguments(arguments)
    checkpoint = checkpoint_to_resume(arguments)
    outcome.start_record(arguments.output_dir)

    parts = _read(data_arguments, arguments)
    config = models.load(AutoConfig, model_arguments.model_name_or_path)
    tokenizer = _tokenizer(model_arguments)
    data = _prepare(parts, tokenizer, config, data_arguments, arguments)
    set_seed(arguments.seed)  # now: a new head must be the same on every rank, whoever prepared the data
    model = _model(model_arguments, tokenizer, data.names)

    trainer = ExactTrainer(
        score=classification.score,
        metrics=classification.metrics,
        compute_loss_func=classification.loss(arguments),
        model=model,
        args=arguments,
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(
            tokenizer, pad_to_multiple_of=shapes.padding(_max_length(data_arguments, tokenizer, config))
        ),
    )
    if trainer.is_world_process_zero():
        samples = f"{len(data.train) if data.train else 0} samples to train on"
        print(f"classify: {model.num_parameters():,} parameters, {len(data.names)} labels, {samples}", flush=True)
    course.run(trainer, "classify", checkpoint, classification.evaluate)
    if trainer.is_world_process_zero():
        shown = data.train if data.evaluation is None else data.evaluation
        classification.show(trainer, classification.some(shown), data.shown, data.names)


@dataclass
class _Data:
    """What the samples came to: tokens and "labels", what the labels are called, and the text of `some` samples."""

    train: Dataset | None
    evaluation: Dataset | None
    names: list[str]
    shown: list[str]


def _read(data: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    if data.dataset_name is not None:
        if data.train_file or data.validation_file:
            raise UserError("give files or --dataset_name, not both")
        parts: Mapping[str, Dataset] = sources.load(arguments, data.dataset_name, name=data.dataset_config_name)
        return parts
    if arguments.do_train and not data.train_file:
        raise UserError("--do_train needs --train_file or --dataset_name")
    if not (data.train_file or data.validation_file):
        raise UserError("--do_eval needs --validation_file, or --train_file or --dataset_name to hold a part of it out")
    return tables.read_files({"train": data.train_file, "validation": data.validation_file}, arguments)


def _prepare(
    parts: Mapping[str, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    config: PretrainedConfig,
    data: DataArguments,
    arguments: TrainingArguments,
) -> _Data:
    train, evaluation = splits.choose(parts, data.validation_split_percentage, arguments)
    if not arguments.do_train:
        train = None
    used = [samples for samples in (train, evaluation) if samples is not None]
    columns = tables.text_columns(used[0], (data.text_column, data.text_pair_column), data.label_column)
    for samples, name in [(samples, name) for samples in used for name in (*columns, data.label_column) if name]:
        splits.column(samples, name, "--label_column" if name == data.label_column else "--text_column")

    # With what is held out: a rare label may be there alone.
    train_values = labels.names_by_value(parts["train"], data.label_column) if train is not None else {}
    values = labels.names_by_value(evaluation, data.label_column) if evaluation is not None else {}
    names = labels.settle(train_values.values(), values.values(), labels.known_names(config))

    tokenise = tables.Tokenising(tokenizer, columns, arguments)
    length = _max_length(data, tokenizer, config)
    train = splits.at_most(train, data.max_train_samples, arguments)
    evaluation = splits.at_most(evaluation, data.max_eval_samples, arguments)
    shown = classification.some(train if evaluation is None else evaluation)
    if train is not None:
        train = tokenise(train, data.label_column, labels.ids_by_value(train_values, names), length)
    if evaluation is not None:
        ids = labels.ids_by_value(values, names)
        evaluation = tokenise.evaluated(evaluation, data.label_column, ids, length)
    return _Data(train, evaluation, names, [_beginning(row, columns) for row in shown])


def _max_length(data: DataArguments, tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> int:
    if data.max_seq_length < 3:
        raise UserError("--max_seq_length must be 3 or more: the tokens around the text count as well")
    limits: list[int | None] = [
        data.max_seq_length,
        tokenizer.model_max_length,
        getattr(config, "max_position_embeddings", None),
    ]
    return min(limit for limit in limits if limit)


def _tokenizer(arguments: ModelArguments) -> PreTrainedTokenizerBase:
    tokenizer = models.load(AutoTokenizer, arguments.tokenizer_name or arguments.model_name_or_path)
    if tokenizer.pad_token is None:  # GPT-2 and its like
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _model(arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, names: list[str]) -> PreTrainedModel:
    model = models.load(
        AutoModelForSequenceClassification,
        arguments.model_name_or_path,
        # In fp32 whatever the file holds: these are the weights that the optimizer changes.
        dtype=torch.float32,
        ignore_mismatched_sizes=True,
        problem_type="single_label_classification",
        **labels.configured(names),
    )
    if model.config.pad_token_id is None:  # where the text ends is known by the padding after it
        model.config.pad_token_id = tokenizer.pad_token_id
    return model


def _beginning(row: dict[str, Any], columns: tuple[str, str | None]) -> str:
    texts = tables.strings([row[name] for name in columns if name is not None])
    return " | ".join(textwrap.shorten(text, _SHOWN_CHARACTERS, placeholder=" …") for text in texts)
