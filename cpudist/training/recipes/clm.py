"""Causal language model on text files: from scratch, with its own tokenizer, or from a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from cpudist.errors import UserError
from cpudist.training.recipes import course, models, outcome, text
from cpudist.training.recipes.arguments import check_training_arguments, checkpoint_to_resume, parse
from cpudist.training.recipes.evaluation import ExactTrainer, evaluate_language_model, token_losses
from cpudist.training.recipes.sources import at_most, hold_out

# From scratch, unless --config_overrides says more: a model that a CPU core trains in minutes.
# Without dropout, which is for data that is seen many times, and costs a core a tenth of its time.
_SMALL_GPT2 = {
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 256,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
_DEFAULT_BLOCK = 256


@dataclass
class ModelArguments:
    """Which model and tokenizer."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Pretrained model to go on from: a folder or a hub name. Without it: from scratch."},
    )
    model_type: str = field(default="gpt2", metadata={"help": "From scratch: the architecture."})
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "From scratch: changes of the configuration, e.g. n_layer=6,n_embd=384 (gpt2 starts from "
            "n_layer=4,n_head=4,n_embd=256)."
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
    validation_split_percentage: int | None = field(
        default=None,
        metadata={"help": "Without --validation_file: how much of the training text to hold out (default 5)."},
    )
    block_size: int | None = field(
        default=None,
        metadata={"help": "Tokens per sample (default: 256, or the model's length if that is less)."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on that many blocks at most."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on that many blocks at most."})
    sample_prompt: str | None = field(
        default=None,
        metadata={"help": "What the sample at the end starts with (default: a line break)."},
    )


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("clm", __doc__ or "", types, argv)
    check_training_arguments(arguments)
    _check_data_arguments(data_arguments, arguments)
    checkpoint = checkpoint_to_resume(arguments)
    outcome.start_record(arguments.output_dir)
    set_seed(arguments.seed)

    train_lines = _lines(data_arguments.train_file, arguments)
    tokenizer = _tokenizer(model_arguments, checkpoint, train_lines)
    block_size = data_arguments.block_size or _default_block_size(tokenizer, model_arguments)
    train, evaluation = _blocks(train_lines, tokenizer, block_size, data_arguments, arguments)
    model = _model(model_arguments, tokenizer, block_size)
    if model.loss_type is None:  # as for GPT-2, whose class has an unusual name; transformers would warn
        model.loss_type = "ForCausalLM"
    outcome.start_record(arguments.output_dir, tokens_per_sample=block_size)

    trainer = ExactTrainer(
        score=next_token_losses,
        model=model,
        args=arguments,
        train_dataset=train if arguments.do_train else None,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    if trainer.is_world_process_zero():
        samples = f"{len(train) if train else 0} blocks of {block_size} tokens to train on"
        print(f"clm: {model.num_parameters():,} parameters, {samples}", flush=True)
    course.run(trainer, "clm", checkpoint, evaluate_language_model)
    if trainer.is_world_process_zero():
        sample = _write_sample(model, tokenizer, data_arguments.sample_prompt)
        outcome.add_results({"sample": sample})
        print(f"a sample of what the model writes:\n{sample}", flush=True)


def next_token_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return token_losses(outputs.logits[:, :-1], inputs["labels"][:, 1:])


def _check_data_arguments(data: DataArguments, arguments: TrainingArguments) -> None:
    if arguments.do_train and not data.train_file:
        raise UserError("--do_train needs --train_file")
    if arguments.do_eval and not (data.validation_file or data.train_file):
        raise UserError("--do_eval needs --validation_file, or --train_file to hold a part of it out")
    if data.block_size is not None and data.block_size < 2:
        raise UserError("--block_size must be 2 or more: a token is predicted from those before it")


def _lines(files: list[str], arguments: TrainingArguments) -> Dataset | None:
    return text.read_lines(text.find_files(files), arguments) if files else None


def _tokenizer(model: ModelArguments, checkpoint: str | None, train_lines: Dataset | None) -> PreTrainedTokenizerBase:
    # A checkpoint's model knows only the tokenizer that it was trained with.
    name = model.tokenizer_name or checkpoint or model.model_name_or_path
    if name is not None:
        return models.load(AutoTokenizer, name)
    if train_lines is None:
        raise UserError("there is nothing to train a tokenizer on; give --tokenizer_name or --train_file")
    return text.train_tokenizer(train_lines, model.vocab_size)


def _default_block_size(tokenizer: PreTrainedTokenizerBase, model: ModelArguments) -> int:
    longest = tokenizer.model_max_length if model.model_name_or_path else _DEFAULT_BLOCK
    return min(longest, _DEFAULT_BLOCK)


def _blocks(
    train_lines: Dataset | None,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    data: DataArguments,
    arguments: TrainingArguments,
) -> tuple[Dataset | None, Dataset | None]:
    """The blocks to train and to evaluate on; what is held out is drawn at random, by the seed."""
    train = evaluation = None
    if train_lines is not None:
        train = text.cut_into_blocks(train_lines, tokenizer, block_size, arguments)
    if data.validation_file:
        lines = _lines(data.validation_file, arguments)
        evaluation = text.cut_into_blocks(lines, tokenizer, block_size, arguments)
    elif arguments.do_eval and train is not None:
        train, evaluation = hold_out(train, data.validation_split_percentage, arguments)
    return at_most(train, data.max_train_samples), at_most(evaluation, data.max_eval_samples)


def _model(arguments: ModelArguments, tokenizer: PreTrainedTokenizerBase, block_size: int) -> PreTrainedModel:
    if arguments.model_name_or_path is not None:
        # In fp32 whatever the file holds: these are the weights that the optimizer changes.
        return models.load(AutoModelForCausalLM, arguments.model_name_or_path, dtype=torch.float32)
    try:
        config = AutoConfig.for_model(
            arguments.model_type,
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        if arguments.model_type == "gpt2":
            config.update({**_SMALL_GPT2, "n_positions": block_size})
        if arguments.config_overrides:
            config.update_from_string(arguments.config_overrides)
        return AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise UserError(f"--model_type or --config_overrides: {' '.join(str(error).split())}") from error


def _write_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """A few dozen tokens that the model writes, the same at every run with the same weights."""
    torch.manual_seed(0)
    ids = tokenizer(prompt or "\n", return_tensors="pt").input_ids
    room = getattr(model.config, "max_position_embeddings", None) or ids.shape[1] + 64
    model.eval()
    written = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max(1, min(64, room - ids.shape[1])),
        do_sample=True,
        temperature=0.7,
        top_k=40,
        pad_token_id=tokenizer.eos_token_id,
    )
    decoded: str = tokenizer.decode(written[0], skip_special_tokens=True)
    return decoded.strip()
