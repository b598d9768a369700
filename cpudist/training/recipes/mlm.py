r"""Masked language model on text, as BERT's: a new small one with its own tokenizer, or a pretrained one.

On the text of a Python package, in about a minute:

    mpirun -n 2 cpudist-train mlm --train_file "$(python -c 'import unittest; print(unittest.__path__[0])')" \
        --vocab_size 1024 --block_size 64 --output_dir runs/mlm --do_train --do_eval --eval_on_start \
        --max_steps 200 --learning_rate 2e-3 --logging_steps 20 --save_strategy no

A new model is a bert with num_hidden_layers=4,num_attention_heads=4,hidden_size=256,intermediate_size=1024 unless
--config_overrides says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    TrainingArguments,
    default_data_collator,
)
from transformers import PreTrainedTokenizerBase as Tokenizer
from transformers.hf_argparser import HfArg

from cpudist.backends import layouts
from cpudist.errors import UserError
from cpudist.training.recipes import data, models, script
from cpudist.training.recipes import language_modeling as lm
from cpudist.training.recipes.models import IGNORED

SHARDING = layouts.ENCODERS  # how a mesh of devices cuts the parameters (--mesh)

# Small and without dropout, as in clm.
_SMALL = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SPECIAL_TOKENS = {  # as BERT's
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_SAMPLE_TOKENS = 64


@dataclass
class DataArguments(lm.DataArguments):
    """Which text, how much of it, and how much of that to mask."""

    mlm_probability: float = HfArg(default=0.15, help="The share of the tokens that is masked.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mlm_probability < 1:
            raise UserError("--mlm_probability must lie between 0 and 1")


def main(argv: list[str]) -> None:
    """Run the recipe with options, or with those in a JSON or YAML file; raise `UserError` where they are wrong."""
    options = script.start("mlm", __doc__, argv, lm.ModelArguments, DataArguments)
    arguments = options.training
    text = lm.prepare_text(options, SPECIAL_TOKENS, "bert", _SMALL)
    model = lm.make_model(AutoModelForMaskedLM, options, text.config)
    masking = Masking(text.tokenizer, mlm_probability=options.data.mlm_probability)
    trainer = models.ExactTrainer(
        model,
        arguments,
        masking,
        train_dataset=None if text.train is None else text.train.remove_columns("labels"),
        eval_dataset=None if text.evaluation is None else mask_once(text.evaluation, masking, arguments),
        processing_class=text.tokenizer,
        score=masked_token_scores,
        metrics=accuracy,
        compute_loss_func=partial(models.mean_loss, label_smoothing=arguments.label_smoothing_factor),
    )
    size = text.block_size
    script.run(trainer, "mlm", options.checkpoint, f"blocks of {size} tokens", size, lm.evaluate_with_perplexity)
    if trainer.is_world_process_zero():
        blocks: Any = text.train if text.evaluation is None else text.evaluation
        masked = masking.with_seed(blocks[0]["input_ids"], arguments.seed, 0)
        script.report_sample("what the model takes masked words for", _guess(model, text.tokenizer, masked))


class Masking(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """Make batches of blocks, masked anew each time, except blocks that have labels and so are masked already."""

    generator: torch.Generator | None

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return "input_ids" and "labels", each of shape (batch, tokens); only masked tokens have labels."""
        masked: dict[str, Any]
        masked = default_data_collator(examples) if "labels" in examples[0] else super().torch_call(examples)
        return masked

    def with_seed(self, tokens: list[int], seed: int, index: int) -> dict[str, list[int]]:
        """Mask the block `tokens` as in training, but always alike for the same seed and index of the block."""
        state = np.random.SeedSequence((seed, index)).generate_state(1)
        self.generator = torch.Generator().manual_seed(int(state[0]))
        inputs, labels = self.torch_mask_tokens(torch.tensor([tokens]))
        self.generator = None
        return {"input_ids": inputs[0].tolist(), "labels": labels[0].tolist()}


def mask_once(blocks: Dataset, masking: Masking, arguments: TrainingArguments) -> Dataset:
    """Mask blocks for evaluation: alike at every evaluation, on any number of ranks, in batches of any size."""
    options = {"tokenizer": masking.tokenizer, "probability": masking.mlm_probability, "seed": arguments.seed}
    return data.map_cached(blocks, _mask, options, arguments, "Masking what to evaluate on", with_indices=True)


def _mask(
    batch: dict[str, list[Any]], indices: list[int], tokenizer: Tokenizer, probability: float, seed: int
) -> dict[str, list[Any]]:
    masking = Masking(tokenizer, mlm_probability=probability)
    rows = [masking.with_seed(tokens, seed, index) for tokens, index in zip(batch["input_ids"], indices, strict=True)]
    return {name: [row[name] for row in rows] for name in ("input_ids", "labels")}


def masked_token_scores(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make rows for `ExactTrainer` of logits, shape (batch, tokens, vocabulary); masked tokens are the targets."""
    labels = inputs["labels"]
    correct = outputs.logits.argmax(dim=-1) == labels  # no token has the number IGNORED
    return {**lm.token_losses(outputs.logits, labels), "correct": correct.sum(dim=1)}


def accuracy(rows: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Return the share of all masked tokens that the model guesses."""
    return {"accuracy": float(rows["correct"].sum() / rows["targets"].sum())}


def _guess(model: PreTrainedModel, tokenizer: Tokenizer, masked: dict[str, list[int]]) -> str:
    """Return the start of a masked block as text, and below it the model's guess for each masked token."""
    model.eval().to("cpu")
    with torch.no_grad():
        guesses = model(input_ids=torch.tensor([masked["input_ids"]])).logits[0].argmax(dim=-1).tolist()
    shown, answers = [], []
    for token, label, guess in list(zip(masked["input_ids"], masked["labels"], guesses, strict=True))[:_SAMPLE_TOKENS]:
        if label != IGNORED:
            # Masking leaves some tokens as they are and replaces some by others; show all as masks.
            shown.append(tokenizer.mask_token_id)
            truth = "right" if guess == label else f"not {tokenizer.decode([label])!r}"
            answers.append(f"{tokenizer.decode([guess])!r} ({truth})")
        elif token not in tokenizer.all_special_ids:
            shown.append(token)
    return f"{tokenizer.decode(shown).strip()}\n{', '.join(answers)}"
