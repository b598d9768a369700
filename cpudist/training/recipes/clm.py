r"""Causal language model on text, as GPT's: a new small one with its own tokenizer, or a pretrained one.

On the text of a Python package, in about a minute:

    mpirun -n 2 cpudist-train clm --train_file "$(python -c 'import unittest; print(unittest.__path__[0])')" \
        --vocab_size 1024 --block_size 64 --output_dir runs/clm --do_train --do_eval --eval_on_start \
        --max_steps 200 --learning_rate 2e-3 --logging_steps 20 --save_strategy no

A new model is a gpt2 with n_layer=4,n_head=4,n_embd=256 unless --config_overrides says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
)
from transformers.hf_argparser import HfArg

from cpudist.backends.xla.spmd import tables
from cpudist.training.recipes import data, script
from cpudist.training.recipes import language_modeling as lm

SHARDING = tables.DECODERS  # how a mesh of devices cuts the parameters (--mesh)

# A core trains it in minutes. No dropout: it is for data that is seen many times, and takes a tenth of the time.
_SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 256, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
SPECIAL_TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")  # as GPT-2's


@dataclass
class DataArguments(lm.DataArguments):
    """Which text, and how much of it."""

    sample_prompt: str | None = HfArg(
        default=None, help="What the sample at the end starts with (default: a line break)."
    )


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (lm.ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = script.parse("clm", __doc__, types, argv)
    checkpoint = script.start(data_arguments, arguments)

    train, evaluation = data.choose_splits(lm.read_text(data_arguments, arguments), arguments)
    tokenizer = lm.make_tokenizer(model_arguments, checkpoint, train, SPECIAL_TOKENS)
    config = lm.make_config(model_arguments, "gpt2", _SMALL, tokenizer, data_arguments.block_size)
    block_size = data.max_length(data_arguments.block_size, tokenizer, config)
    train, evaluation = lm.make_blocks(train, evaluation, tokenizer, block_size, data_arguments, arguments)
    model = lm.make_model(AutoModelForCausalLM, model_arguments, config, arguments)
    if model.loss_type is None:  # as for GPT-2, whose class has an unusual name; transformers would warn
        model.loss_type = "ForCausalLM"

    trainer = script.ExactTrainer(
        score=next_token_losses,
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=evaluation,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    script.run(trainer, "clm", checkpoint, f"blocks of {block_size} tokens", block_size, lm.evaluate_with_perplexity)
    if trainer.is_world_process_zero():
        script.report_sample("what the model writes", _write(model, tokenizer, data_arguments.sample_prompt))


def next_token_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows for `ExactTrainer`: every token but the first of a block is a target, predicted from those before it."""
    return lm.token_losses(outputs.logits[:, :-1], inputs["labels"][:, 1:])


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """A few dozen tokens that the model writes, the same at every run with the same weights."""
    torch.manual_seed(0)
    ids = tokenizer(prompt or "\n", return_tensors="pt").input_ids
    room = getattr(model.config, "max_position_embeddings", None) or ids.shape[1] + 64
    model.eval().to("cpu")  # every length would be compiled for another device
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
