"""What clm and mlm share: options, the tokenizer, text in blocks of tokens, the model and its perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.hf_argparser import HfArg

from cpudist.errors import UserError
from cpudist.training.recipes.data import (
    FileDataArguments,
    check_minimum,
    choose_splits,
    hold_out,
    limit,
    load,
    map_cached,
    string_columns,
)
from cpudist.training.recipes.models import IGNORED, load_model, load_pretrained, load_tokenizer, max_length, new_model
from cpudist.training.recipes.script import NewModelArguments, Options, add_first_and_last

# The tokens left over at the end of a batch are lost; large batches lose few.
_LINES_PER_BATCH = 10_000


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


@dataclass(frozen=True)
class Text:
    """Text that is ready for a model, in blocks of `block_size` tokens; None: not wanted."""

    train: Dataset | None
    evaluation: Dataset | None
    tokenizer: Tokenizer
    config: PretrainedConfig
    block_size: int


def prepare_text(options: Options, special_tokens: Mapping[str, str], new_type: str, new_sizes: dict[str, Any]) -> Text:
    """Read the text, load or make the tokenizer and the model's configuration, and cut the text into blocks.

    Args:
        options: `ModelArguments` and `DataArguments`, or classes derived from them.
        special_tokens: of a new tokenizer, by their names in transformers.
        new_type: the architecture of a new model, unless --model_type names another.
        new_sizes: the configuration of a new model of `new_type`.

    Raises:
        UserError: the data cannot be read or is too short, or tokenizer or configuration cannot be had.
    """
    data, arguments = options.data, options.training
    train, evaluation = choose_splits(read_text(data, arguments), arguments)
    tokenizer = make_tokenizer(options, train, special_tokens)
    config = _make_config(options.model, new_type, {**new_sizes, "max_position_embeddings": data.block_size}, tokenizer)
    block_size = max_length(data.block_size, tokenizer, config)
    train, evaluation = (
        None if lines is None else cut_into_blocks(lines, tokenizer, block_size, arguments)
        for lines in (train, evaluation)
    )
    if arguments.do_eval and evaluation is None:
        train, evaluation = hold_out(train, data, arguments)
    train = limit(train, data.max_train_samples) if arguments.do_train else None
    return Text(train, limit(evaluation, data.max_eval_samples), tokenizer, config, block_size)


def make_tokenizer(options: Options, lines: Dataset | None, special_tokens: Mapping[str, str]) -> Tokenizer:
    """Load the tokenizer that the options name, or train one on `lines`; raise `UserError` if that fails."""
    model = options.model
    if options.checkpoint or model.tokenizer_name or model.model_name_or_path:
        tokenizer = load_tokenizer(model.tokenizer_name, options.checkpoint, model.model_name_or_path)
        if "mask_token" in special_tokens and tokenizer.mask_token is None:
            raise UserError("the tokenizer has no mask token; give one that was made for a masked language model")
        return tokenizer
    if lines is None:
        raise UserError("there is nothing to train a tokenizer on; give --tokenizer_name or --train_file")
    return train_tokenizer(lines, model.vocab_size, special_tokens)


def train_tokenizer(lines: Dataset, vocab_size: int, special_tokens: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, like GPT-2's, on rank 0; every rank gets it.

    Args:
        lines: in a column "text".
        vocab_size: the number of tokens.
        special_tokens: by their names in transformers. The tokenizer puts a "cls_token" and a "sep_token" around every
            text and between two texts, as BERT's does.
    """
    alone = not dist.is_initialized()
    trained = [_train_bpe(lines, vocab_size, special_tokens) if alone or dist.get_rank() == 0 else ""]
    if not alone:
        dist.broadcast_object_list(trained, src=0)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(trained[0]), **special_tokens)


def _train_bpe(lines: Dataset, vocab_size: int, special_tokens: Mapping[str, str]) -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # A mask stands for a word and the blank before it.
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


def read_text(options: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """Return the lines of each split in a column "text"; raise `UserError` if there are none to read."""

    def read_files(files: list[str]) -> Dataset:
        options = {"keep_linebreaks": True, "encoding_errors": "replace"}
        return load("text", arguments, data_files={"train": files}, split="train", **options)

    splits = options.read(arguments, read_files)
    if options.dataset_name is None:
        return splits
    samples = next(iter(splits.values()))
    columns = string_columns(samples)
    if not columns:
        raise UserError(
            f"{options.dataset_name} has no column of text, only {', '.join(samples.column_names)}; give another one"
        )
    column = {"column": "text" if "text" in columns else columns[0]}
    return {split: map_cached(rows, _as_lines, column, arguments, "Reading text") for split, rows in splits.items()}


def cut_into_blocks(lines: Dataset, tokenizer: Tokenizer, block_size: int, arguments: TrainingArguments) -> Dataset:
    """Join `lines` to one stream of tokens, and cut it into blocks, with equal columns "input_ids" and "labels".

    A block has `block_size` tokens, with the special tokens that the tokenizer puts around a text.

    Raises:
        UserError: special tokens leave no room in a block, or the text is too short for one block.
    """
    encoded = tokenizer("a", return_special_tokens_mask=True)
    tokens, special = encoded["input_ids"], encoded["special_tokens_mask"]
    before, after = tokens[: special.index(0)], tokens[len(special) - special[::-1].index(0) :]
    if len(before) + len(after) >= block_size:
        raise UserError(f"--block_size {block_size} leaves no room between the tokenizer's special tokens; give more")
    options = {"tokenizer": tokenizer, "block_size": block_size, "before": before, "after": after}
    desc = f"Cutting into blocks of {block_size} tokens"
    blocks = map_cached(lines, _cut, options, arguments, desc, batch_size=_LINES_PER_BATCH)
    if len(blocks) == 0:
        raise UserError(f"the text is too short for one block of {block_size} tokens; give more or --block_size")
    return blocks


def _as_lines(batch: dict[str, list[str]], column: str) -> dict[str, list[str]]:
    return {"text": [row if row.endswith("\n") else row + "\n" for row in batch[column]]}


def _cut(
    batch: dict[str, list[str]], tokenizer: Tokenizer, block_size: int, before: list[int], after: list[int]
) -> dict[str, Any]:
    lines = tokenizer(batch["text"], add_special_tokens=False)["input_ids"]
    stream = [token for tokens in lines for token in tokens]
    room = block_size - len(before) - len(after)
    whole = len(stream) - len(stream) % room
    blocks = [before + stream[start : start + room] + after for start in range(0, whole, room)]
    return {"input_ids": blocks, "labels": blocks}


def _make_config(
    model: ModelArguments, new_type: str, new_sizes: dict[str, Any], tokenizer: Tokenizer
) -> PretrainedConfig:
    """Load the configuration of the pretrained model, or make one for a new model."""
    if model.model_name_or_path is not None:
        return load_pretrained(AutoConfig, model.model_name_or_path)
    model_type = model.model_type or new_type
    if model_type not in CONFIG_MAPPING:
        raise UserError(f"--model_type: transformers knows no {model_type}; give one that it has, such as {new_type}")
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if model_type == new_type:
        config.update(new_sizes)
    return config


def make_model(auto_class: Any, options: Options, config: PretrainedConfig) -> PreTrainedModel:
    """Load the pretrained model that the options name, or make a new one of `config`, or raise `UserError`."""
    name = options.model.model_name_or_path
    if name is not None:
        return load_model(auto_class, name, options.training)
    return new_model(auto_class, config, options.model.config_overrides, options.training)


def token_losses(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Make rows for `ExactTrainer`, with "loss" and "targets".

    Args:
        logits: shape (batch, tokens, vocabulary).
        labels: shape (batch, tokens); IGNORED is no target.
    """
    # One sample at a time: the logits of a batch in float32 may take gigabytes.
    sums = [
        torch.nn.functional.cross_entropy(sample.float(), targets, ignore_index=IGNORED, reduction="sum")
        for sample, targets in zip(logits, labels, strict=True)
    ]
    return {"loss": torch.stack(sums), "targets": (labels != IGNORED).sum(dim=1)}


def evaluate_with_perplexity(trainer: Trainer) -> dict[str, float]:
    """Evaluate, and add the perplexity to the metrics; the run record gets the first and the last perplexity."""
    metrics: dict[str, float] = trainer.evaluate()
    add_first_and_last(trainer, "perplexity", lambda entry: perplexity(entry["eval_loss"]))
    return {**metrics, "perplexity": perplexity(metrics["eval_loss"])}


def perplexity(loss: float) -> float:
    """Convert a mean loss per token, in nats, to the number of equally likely choices that it stands for."""
    return math.exp(loss) if loss < 700 else math.inf
