"""What clm and mlm share: options, reading text, training a tokenizer, cutting text into blocks of tokens, the model.

Every rank has the same tokenizer: a new one is trained by rank 0 alone and sent to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.hf_argparser import HfArg

from cpudist.errors import UserError
from cpudist.training.recipes.data import (
    FileDataArguments,
    check_minimum,
    hold_out,
    limit,
    load_dataset,
    load_files,
    map_cached,
)
from cpudist.training.recipes.script import (
    NewModelArguments,
    add_first_and_last,
    load_model,
    load_pretrained,
    load_tokenizer,
    new_model,
)

# What is left over at the end of a batch is lost: large batches lose little.
_LINES_PER_BATCH = 10_000


# Options.


@dataclass
class ModelArguments(NewModelArguments):
    """Which model and tokenizer."""

    model_type: str | None = HfArg(
        default=None, help="Architecture of a new model (default: gpt2 for clm, bert for mlm, small ones)."
    )
    tokenizer_name: str | None = HfArg(
        default=None, help="Tokenizer: a folder or a hub name. Without it the model's, or one that is trained."
    )
    vocab_size: int = HfArg(default=8192, help="Size of a tokenizer that is trained.")


@dataclass
class DataArguments(FileDataArguments):
    """Which text, and how much of it. A sample is a block of text."""

    block_size: int = HfArg(
        default=256, aliases=["--max_seq_length"], help="Tokens per sample, or the model's length if that is less."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 2, "block_size")  # a token is predicted from others


# From text to samples.


def read_text(options: DataArguments, arguments: TrainingArguments) -> dict[str, Dataset]:
    """The text of each split as lines in a column "text", with their line breaks.

    The rows of a data set are lines; raises `UserError` if it has no column of text.
    """
    if options.dataset_name is None:
        kwargs = {"keep_linebreaks": True, "encoding_errors": "replace"}
        return {split: load_files(files, "text", arguments, **kwargs) for split, files in options.files().items()}
    splits = load_dataset(options, arguments)
    features = next(iter(splits.values())).features
    strings = ("string", "large_string")
    columns = [column for column, feature in features.items() if getattr(feature, "dtype", None) in strings]
    if not columns:
        raise UserError(f"{options.dataset_name} has no column of text, only {', '.join(features)}")
    column = {"column": "text" if "text" in columns else columns[0]}
    return {split: map_cached(rows, _as_lines, column, arguments, "Reading text") for split, rows in splits.items()}


def make_tokenizer(
    model: ModelArguments, checkpoint: str | None, lines: Dataset | None, special_tokens: Mapping[str, str]
) -> PreTrainedTokenizerBase:
    """The tokenizer of the options, or one that is trained on `lines`; raises `UserError` if there are none."""
    names = (model.tokenizer_name, checkpoint, model.model_name_or_path)
    if any(names):
        return load_tokenizer(*names)
    if lines is None:
        raise UserError("there is nothing to train a tokenizer on; give --tokenizer_name or --train_file")
    return train_tokenizer(lines, model.vocab_size, special_tokens)


def train_tokenizer(lines: Dataset, vocab_size: int, special_tokens: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, as GPT-2's, for `lines`: trained on rank 0, the same on every rank.

    `special_tokens` has names as in transformers, such as "eos_token". A tokenizer that has a "cls_token" and a
    "sep_token" puts them around every text and between two texts, as BERT's does.
    """
    trained = [_train(lines, vocab_size, special_tokens) if not dist.is_initialized() or dist.get_rank() == 0 else ""]
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.broadcast_object_list(trained, src=0)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(trained[0]), **special_tokens)


def make_blocks(
    train: Dataset | None,
    evaluation: Dataset | None,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    data: DataArguments,
    arguments: TrainingArguments,
) -> tuple[Dataset | None, Dataset | None]:
    """Lines to train and to evaluate on to as many blocks of both as are wanted; what is missing is held out."""
    train, evaluation = (
        None if lines is None else cut_into_blocks(lines, tokenizer, block_size, arguments)
        for lines in (train, evaluation)
    )
    if arguments.do_eval and evaluation is None:
        train, evaluation = hold_out(train, data, arguments)
    train = limit(train, data.max_train_samples) if arguments.do_train else None
    return train, limit(evaluation, data.max_eval_samples)


def cut_into_blocks(
    lines: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, arguments: TrainingArguments
) -> Dataset:
    """`lines` as one stream of tokens, cut into blocks of `block_size`; columns "input_ids" and "labels", the same.

    The special tokens that the tokenizer puts around a text stand around every block. Raises `UserError` if they leave
    no room, or if the text is too short for one block.
    """
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, special = encoded["input_ids"], encoded["special_tokens_mask"]
    before, after = tokens[: special.index(0)], tokens[len(special) - special[::-1].index(0) :]
    if len(before) + len(after) >= block_size:
        raise UserError(f"--block_size {block_size} leaves no room between the tokenizer's special tokens")
    blocks = map_cached(
        lines,
        _cut,
        {"tokenizer": tokenizer, "block_size": block_size, "before": before, "after": after},
        arguments,
        f"Cutting into blocks of {block_size} tokens",
        batch_size=_LINES_PER_BATCH,
    )
    if len(blocks) == 0:
        raise UserError(f"the text is too short for one block of {block_size} tokens; give more or --block_size")
    return blocks


def _as_lines(batch: dict[str, list[str]], column: str) -> dict[str, list[str]]:
    return {"text": [row if row.endswith("\n") else row + "\n" for row in batch[column]]}


def _cut(
    batch: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    before: list[int],
    after: list[int],
) -> dict[str, Any]:
    lines = tokenizer(batch["text"], add_special_tokens=False)["input_ids"]
    stream = [token for tokens in lines for token in tokens]
    room = block_size - len(before) - len(after)
    whole = len(stream) - len(stream) % room
    blocks = [before + stream[start : start + room] + after for start in range(0, whole, room)]
    return {"input_ids": blocks, "labels": blocks}


def _train(lines: Dataset, vocab_size: int, special_tokens: Mapping[str, str]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # A mask stands for a word with the blank before it.
        special_tokens=[
            AddedToken(token, special=True, lstrip=token == special_tokens.get("mask_token"))
            for token in dict.fromkeys(special_tokens.values())
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_batches(lines), trainer)
    if "cls_token" in special_tokens:
        first, last = special_tokens["cls_token"], special_tokens["sep_token"]
        ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{first} $A {last}", f"{first} $A {last} $B:1 {last}:1", ids
        )
    text: str = tokenizer.to_str()
    return text


def _batches(lines: Dataset) -> Iterator[list[str]]:
    for start in range(0, len(lines), _LINES_PER_BATCH):
        yield lines[start : start + _LINES_PER_BATCH]["text"]


# The model.


def make_config(
    model: ModelArguments,
    default_type: str,
    small: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
) -> PretrainedConfig:
    """The configuration of the pretrained model; or that of a new one, of `default_type` with the sizes `small`.

    Raises `UserError` if it cannot be loaded, and for an unknown --model_type.
    """
    if model.model_name_or_path is not None:
        return load_pretrained(AutoConfig, model.model_name_or_path)
    model_type = model.model_type or default_type
    if model_type not in CONFIG_MAPPING:
        raise UserError(f"--model_type: transformers knows no {model_type}")
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if model_type == default_type:
        config.update({**small, "max_position_embeddings": block_size})
    return config


def make_model(
    auto_class: Any, model: ModelArguments, config: PretrainedConfig, arguments: TrainingArguments
) -> PreTrainedModel:
    """The pretrained model of the options, or a new one of `config`; raises `UserError` if it cannot be."""
    if model.model_name_or_path is not None:
        return load_model(auto_class, model.model_name_or_path, arguments)
    return new_model(auto_class, config, model.config_overrides, arguments)


def evaluate_with_perplexity(trainer: Trainer) -> dict[str, float]:
    """Trainer's metrics and the perplexity; the run record gets that of the first evaluation, too."""
    metrics: dict[str, float] = trainer.evaluate()
    add_first_and_last(trainer, "perplexity", lambda entry: perplexity(entry["eval_loss"]))
    return {**metrics, "perplexity": perplexity(metrics["eval_loss"])}


def perplexity(loss: float) -> float:
    """A mean loss per token, in nats, as a number of equally likely choices."""
    return math.exp(loss) if loss < 700 else math.inf
