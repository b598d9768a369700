"""What benchmarks/losses.py trains: a language model on source code, and a pretrained encoder on questions."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from pretrained import minilm

Batch = dict[str, torch.Tensor]  # of the model's inputs, shape (samples, ...) each
HELD_OUT = 5  # of the questions' paragraphs, every fifth


class Task(Protocol):
    """One task: its model, its samples, and what is measured on the held-out ones.

    Attributes:
        measures: the names of what `measure` returns; the first one is a loss.
        steps: of a training.
        evaluate: after how many steps the held-out samples are measured; a multiple of all K, so that this adds no
            exchange.
        rate: the learning rate, after `warm_up` steps.
        held_out: all held-out samples.
    """

    measures: tuple[str, ...]
    steps: int
    evaluate: int
    rate: float
    warm_up: int
    held_out: Batch

    def model(self) -> Any:
        """Return a model whose parameters the seed of torch decides on."""

    def draw(self, generator: torch.Generator) -> Batch:
        """Return a batch of one rank."""

    def measure(self, outputs: Any, batch: Batch) -> list[torch.Tensor]:
        """Return the mean of each measure over a batch."""


class LanguageModel:
    """A GPT-2 of 11 million parameters, from nothing, on the source code of Python's standard library."""

    measures = ("held-out loss, nats per token",)
    steps, evaluate, rate, warm_up = 2048, 256, 6e-4, 100
    _VOCABULARY, _LENGTH, _BATCH = 1024, 64, 2  # tokens; tokens of a sample; samples of a rank in a step

    def __init__(self, folder: Path) -> None:
        cache = folder / "tokens.pt"
        if not cache.exists():
            torch.save(self._read_tokens(), cache)
        self._train, held_out = torch.load(cache, weights_only=True)
        blocks = held_out[: len(held_out) // self._LENGTH * self._LENGTH].view(-1, self._LENGTH)
        blocks = blocks[:: max(len(blocks) // 128, 1)]
        self.held_out = {"input_ids": blocks, "labels": blocks}

    def model(self) -> Any:
        sizes = {"vocab_size": self._VOCABULARY, "n_positions": self._LENGTH, "n_layer": 6, "n_head": 6, "n_embd": 384}
        without_dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **without_dropout))
        model.loss_type = "ForCausalLM"
        return model

    def draw(self, generator: torch.Generator) -> Batch:
        starts = torch.randint(len(self._train) - self._LENGTH, (self._BATCH,), generator=generator)
        batch = torch.stack([self._train[start : start + self._LENGTH] for start in starts])
        return {"input_ids": batch, "labels": batch}

    def measure(self, outputs: Any, batch: Batch) -> list[torch.Tensor]:
        return [outputs.loss]

    def _read_tokens(self) -> list[torch.Tensor]:
        """Return the tokens to train on, and the held-out ones: those of every twentieth file."""
        texts = [file.read_text(errors="replace") for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
        held_out = texts[::20]
        del texts[::20]
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=self._VOCABULARY, initial_alphabet=alphabet, show_progress=False)
        )
        return [torch.tensor(tokenizer.encode("".join(part)).ids) for part in (texts, held_out)]


class _Questions:
    """A pretrained MiniLM on questions of a file in SQuAD's format."""

    _BATCH: int

    def __init__(self, file: Path) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(minilm())
        self._articles = json.loads(file.read_text(encoding="utf-8"))["data"]
        self._train, self.held_out = self._encode(False), self._encode(True)

    def draw(self, generator: torch.Generator) -> Batch:
        chosen = torch.randint(len(self._train["input_ids"]), (self._BATCH,), generator=generator)
        return {name: values[chosen] for name, values in self._train.items()}

    def _encode(self, held_out: bool) -> Batch:
        raise NotImplementedError

    def _paragraphs(self, held_out: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number of the article, and the paragraph."""
        for number, article in enumerate(self._articles):
            for position, paragraph in enumerate(article["paragraphs"]):
                if (position % HELD_OUT == 0) == held_out:
                    yield number, paragraph


class Classifier(_Questions):
    """Says which article a question is about."""

    measures = ("held-out loss, nats", "accuracy")
    steps, evaluate, rate, warm_up = 128, 32, 5e-5, 16
    _BATCH, _LENGTH = 4, 32

    def model(self) -> Any:
        return AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=len(self._articles))

    def measure(self, outputs: Any, batch: Batch) -> list[torch.Tensor]:
        return [outputs.loss, (outputs.logits.argmax(-1) == batch["labels"]).float().mean()]

    def _encode(self, held_out: bool) -> Batch:
        found = [(one["question"], n) for n, paragraph in self._paragraphs(held_out) for one in paragraph["qas"]]
        questions, labels = zip(*found, strict=True)
        encoded = self._tokenizer(
            list(questions), max_length=self._LENGTH, truncation=True, padding="max_length", return_tensors="pt"
        )
        return {**encoded, "labels": torch.tensor(labels)}


class Answers(_Questions):
    """Finds the answer to a question in its paragraph."""

    measures = ("held-out loss, nats", "exact answers")
    steps, evaluate, rate, warm_up = 256, 64, 1e-4, 32
    _BATCH, _LENGTH = 4, 192

    def model(self) -> Any:
        return AutoModelForQuestionAnswering.from_pretrained(minilm())

    def measure(self, outputs: Any, batch: Batch) -> list[torch.Tensor]:
        begins = outputs.start_logits.argmax(-1) == batch["start_positions"]
        ends = outputs.end_logits.argmax(-1) == batch["end_positions"]
        return [outputs.loss, (begins & ends).float().mean()]

    def _encode(self, held_out: bool) -> Batch:
        found: list[Batch] = []
        for _, paragraph in self._paragraphs(held_out):
            for question in paragraph["qas"]:
                if question["answers"]:
                    encoded = self._tokenizer(
                        question["question"],
                        paragraph["context"],
                        max_length=self._LENGTH,
                        truncation="only_second",
                        padding="max_length",
                        return_tensors="pt",
                    )
                    answer = question["answers"][0]
                    last = answer["answer_start"] + len(answer["text"]) - 1
                    span = [encoded.char_to_token(0, at, sequence_index=1) for at in (answer["answer_start"], last)]
                    if None not in span:  # the answer is not cut off
                        begin, end = (torch.tensor([token]) for token in span)
                        found.append({**encoded, "start_positions": begin, "end_positions": end})
        return {name: torch.cat([one[name] for one in found]) for name in found[0]}
