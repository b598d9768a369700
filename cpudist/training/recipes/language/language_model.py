"""What the recipes for language models share: their options, and the way from text to tokenizer, blocks and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from cpudist.errors import UserError
from cpudist.training.recipes.common import models, outcome
from cpudist.training.recipes.common.arguments import check_training_arguments, checkpoint_to_resume
from cpudist.training.recipes.common.sources import at_most, hold_out
from cpudist.training.recipes.language import text

_DEFAULT_BLOCK = 256


@dataclass
class ModelArguments:
    """Which model and tokenizer."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Pretrained model to go on from: a folder or a hub name. Without it: from scratch."},
    )
    model_type: str | None = field(
        default=None,
        metadata={"help": "From scratch: the architecture (default: a small gpt2 for clm, a small bert for mlm)."},
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "From scratch: changes of the configuration, e.g. n_layer=6,n_embd=384 (gpt2 starts from "
            "n_layer=4,n_head=4,n_embd=256) or num_hidden_layers=6 (bert starts from num_hidden_layers=4,"
            "num_attention_heads=4,hidden_size=256,intermediate_size=1024)."
        },
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={"help": "Tokenizer: a folder or a hub name. Without it the model's, or one that is trained."},
    )
    vocab_size: int = field(default=8192, metadata={"help": "Size of a tokenizer that is trained."})


@dataclass
class DataArguments:
    """Which text, and how much of it."""

    train_file: list[str] = field(
        default_factory=list, metadata={"help": "Text to train on: files, patterns or folders.", "nargs": "+"}
    )
    validation_file: list[str] = field(
        default_factory=list,
        metadata={"help": "Text to evaluate on: files, patterns or folders.", "nargs": "+"},
    )
    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Instead of files: a data set with a column of text, a hub name or a folder. Its split train is "
            "trained on, its split validation (or test) evaluated on."
        },
    )
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "The configuration of --dataset_name, where it has several."}
    )
    validation_split_percentage: int | None = field(
        default=None,
        metadata={"help": "Without text to evaluate on: how much of the training text to hold out (default 5)."},
    )
    block_size: int | None = field(
        default=None,
        metadata={
            "help": "Tokens per sample (default: 256, or the model's length if that is less).",
            "aliases": ["--max_seq_length"],
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on that many blocks at most."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on that many blocks at most."})


@dataclass(frozen=True)
class Recipe:
    """What sets one of these recipes apart; `model_type` and `small` are what a model from scratch starts from."""

    name: str
    auto_class: Any
    model_type: str
    small: Mapping[str, Any]
    special_tokens: Mapping[str, str]


@dataclass(frozen=True)
class Prepared:
    """What a Trainer needs; the blocks have the columns "input_ids" and "labels", which are the same."""

    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    train: Dataset | None
    evaluation: Dataset | None
    checkpoint: str | None


def prepare(recipe: Recipe, model: ModelArguments, data: DataArguments, arguments: TrainingArguments) -> Prepared:
    """Check the options, read the text and make everything from it, alike on every rank."""
    check_training_arguments(arguments)
    _check_data_arguments(data, arguments)
    checkpoint = checkpoint_to_resume(arguments)
    outcome.start_record(arguments.output_dir)
    set_seed(arguments.seed)

    train_lines, evaluation_lines = _read(data, arguments)
    tokenizer = _tokenizer(recipe, model, checkpoint, train_lines)
    block_size = data.block_size or _default_block_size(tokenizer, model)
    train, evaluation = (
        None if lines is None else text.cut_into_blocks(lines, tokenizer, block_size, arguments)
        for lines in (train_lines, evaluation_lines)
    )
    if arguments.do_eval and train is not None and evaluation is None:
        train, evaluation = hold_out(train, data.validation_split_percentage, arguments)
    train = at_most(train, data.max_train_samples) if arguments.do_train else None
    evaluation = at_most(evaluation, data.max_eval_samples)
    built = _model(recipe, model, tokenizer, block_size)
    outcome.start_record(arguments.output_dir, tokens_per_sample=block_size)
    if arguments.process_index == 0:
        samples = f"{len(train or ())} blocks of {block_size} tokens to train on"
        print(f"{recipe.name}: {built.num_parameters():,} parameters, {samples}", flush=True)
    return Prepared(tokenizer, built, train, evaluation, checkpoint)


def _check_data_arguments(data: DataArguments, arguments: TrainingArguments) -> None:
    if data.dataset_name and (data.train_file or data.validation_file):
        raise UserError("give text as files or by --dataset_name, not both")
    if arguments.do_train and not (data.train_file or data.dataset_name):
        raise UserError("--do_train needs --train_file or --dataset_name")
    if arguments.do_eval and not (data.validation_file or data.train_file or data.dataset_name):
        raise UserError("--do_eval needs --validation_file or --dataset_name, or --train_file to hold a part of it out")
    if data.block_size is not None and data.block_size < 2:
        raise UserError("--block_size must be 2 or more: a token is predicted from others")


def _read(data: DataArguments, arguments: TrainingArguments) -> tuple[Dataset | None, Dataset | None]:
    """The lines to train and to evaluate on; without the latter, a part of the former will be held out."""
    if data.dataset_name is None:
        train, evaluation = (
            text.read_lines(text.find_files(files), arguments) if files else None
            for files in (data.train_file, data.validation_file)
        )
        return train, evaluation
    splits = text.read_dataset(data.dataset_name, data.dataset_config_name, arguments)
    if arguments.do_train and "train" not in splits:
        raise UserError(f"{data.dataset_name} has no split train, only {', '.join(splits)}")
    evaluation = splits.get("validation") or splits.get("test") if arguments.do_eval else None
    return splits.get("train"), evaluation


def _tokenizer(
    recipe: Recipe, model: ModelArguments, checkpoint: str | None, train_lines: Dataset | None
) -> PreTrainedTokenizerBase:
    # A checkpoint's model knows only the tokenizer that it was trained with.
    name = model.tokenizer_name or checkpoint or model.model_name_or_path
    if name is not None:
        return models.load(AutoTokenizer, name)
    if train_lines is None:
        raise UserError("there is nothing to train a tokenizer on; give --tokenizer_name or --train_file")
    return text.train_tokenizer(train_lines, model.vocab_size, recipe.special_tokens)


def _default_block_size(tokenizer: PreTrainedTokenizerBase, model: ModelArguments) -> int:
    longest = tokenizer.model_max_length if model.model_name_or_path else _DEFAULT_BLOCK
    return min(longest, _DEFAULT_BLOCK)


def _model(
    recipe: Recipe, arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int
) -> PreTrainedModel:
    if arguments.model_name_or_path is not None:
        # In fp32 whatever the file holds: these are the weights that the optimizer changes.
        return models.load(recipe.auto_class, arguments.model_name_or_path, dtype=torch.float32)
    model_type = arguments.model_type or recipe.model_type
    try:
        config = AutoConfig.for_model(
            model_type,
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        if model_type == recipe.model_type:
            config.update({**recipe.small, "max_position_embeddings": block_size})
        if arguments.config_overrides:
            config.update_from_string(arguments.config_overrides)
        return recipe.auto_class.from_config(config)
    except ValueError as error:
        raise UserError(f"--model_type or --config_overrides: {' '.join(str(error).split())}") from error
