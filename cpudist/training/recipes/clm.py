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
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, default_data_collator
from transformers.hf_argparser import HfArg

from cpudist.backends import layouts
from cpudist.training.recipes import language_modeling as lm
from cpudist.training.recipes import models, script

SHARDING = layouts.DECODERS  # how a mesh of devices cuts the parameters (--mesh)

# A core trains it in minutes. No dropout: that helps with data that is seen many times, and takes a tenth of the time.
_SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 256, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
SPECIAL_TOKENS = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")  # as GPT-2's


@dataclass
class DataArguments(lm.DataArguments):
    """Which text, and how much of it."""

    sample_prompt: str | None = HfArg(default=None, help="Start of the sample at the end (default: a line break).")


def main(argv: list[str]) -> None:
    """Run the recipe with options, or with those in a JSON or YAML file; raise `UserError` where they are wrong."""
    options = script.start("clm", __doc__, argv, lm.ModelArguments, DataArguments)
    text = lm.prepare_text(options, SPECIAL_TOKENS, "gpt2", _SMALL)
    model = lm.make_model(AutoModelForCausalLM, options, text.config)
    if model.loss_type is None:  # for GPT-2, whose class has an unusual name; transformers would warn
        model.loss_type = "ForCausalLM"

    trainer = models.ExactTrainer(
        model,
        options.training,
        default_data_collator,
        train_dataset=text.train,
        eval_dataset=text.evaluation,
        processing_class=text.tokenizer,
        score=next_token_losses,
    )
    size = text.block_size
    script.run(trainer, "clm", options.checkpoint, f"blocks of {size} tokens", size, lm.evaluate_with_perplexity)
    if trainer.is_world_process_zero():
        script.report_sample("what the model writes", _write(model, text.tokenizer, options.data.sample_prompt))


def next_token_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make rows for `ExactTrainer` of logits, shape (batch, tokens, vocabulary); each token predicts the next one."""
    return lm.token_losses(outputs.logits[:, :-1], inputs["labels"][:, 1:])


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """Return up to 64 tokens that the model writes, the same in every run with the same weights."""
    torch.manual_seed(0)
    ids = tokenizer(prompt or "\n", return_tensors="pt").input_ids
    room = getattr(model.config, "max_position_embeddings", None) or ids.shape[1] + 64
    model.eval().to("cpu")  # a device that compiles would compile every length
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
