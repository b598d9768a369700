"""Train a model with Trainer, as a user writes it without cpudist: whole_jobs.py starts this script in several ways.

    trainer_script.py MODEL [FLAGS OF TrainingArguments]

MODEL is "gpt2", of 24 million parameters, on the bytes of Python's own source code; or "qa" or "mlm", two layers of
BERT-large's width on Python's own docstrings, with a head that answers questions or predicts words. The docstrings are
padded to 384 tokens, as transformers' run_qa.py does by default; 62 % are padding, as with SQuAD.
"""

import ast
import random
import re
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from usage import asked

TOKENS, PADDED = 128, 384  # of a sample
BYTES = 1_000_000  # more than is trained on
VOCABULARY = 30522
LEAST = 60  # Shorter docstrings are left out.
SIZES = {"vocab_size": VOCABULARY, "n_embd": 384, "n_layer": 7, "n_head": 12, "n_positions": TOKENS}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 4096}
SOURCES = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
Sample = dict[str, Any]


def code() -> list[Sample]:
    """Return samples of source code, to predict the next byte."""
    tokens = list(b"".join(file.read_bytes() for file in SOURCES)[:BYTES])
    rows = [tokens[at : at + TOKENS] for at in range(0, len(tokens) - TOKENS + 1, TOKENS)]
    return [{"input_ids": row, "labels": row} for row in rows]


def texts() -> Iterator[list[str]]:
    """Yield docstrings in a random order, as words and signs."""
    nodes = [node for file in SOURCES for node in ast.walk(ast.parse(file.read_bytes()))]
    kinds = (ast.Module, ast.FunctionDef, ast.ClassDef)
    found = [re.findall(r"\w+|[^\w\s]", ast.get_docstring(node) or "") for node in nodes if isinstance(node, kinds)]
    random.Random(0).shuffle(found)
    yield from (text for text in found if len(text) >= LEAST)


def docstrings() -> Iterator[tuple[Sample, int]]:
    """Yield docstrings, padded, and their lengths. A token is a word or a sign."""
    for text in texts():
        ids = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in text[:PADDED]]
        padding = [0] * (PADDED - len(ids))
        yield {"input_ids": ids + padding, "attention_mask": [1] * len(ids) + padding}, len(ids)


def questions() -> list[Sample]:
    """Return samples to find a span of words."""
    return [{**sample, "start_positions": n // 3, "end_positions": n // 2} for sample, n in docstrings()]


def masked() -> list[Sample]:
    """Return samples to predict 15 % of the words."""
    draw, samples = random.Random(1), []
    for sample, count in docstrings():
        targets = set(draw.sample(range(count), max(count * 15 // 100, 1)))
        labels = [token if at in targets else -100 for at, token in enumerate(sample["input_ids"])]
        ids = [VOCABULARY - 1 if at in targets else token for at, token in enumerate(sample["input_ids"])]
        samples.append({**sample, "input_ids": ids, "labels": labels})
    return samples


MODELS: dict[str, Any] = {
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **SIZES)), code),
    "qa": (lambda: BertForQuestionAnswering(BertConfig(**LARGE)), questions),
    "mlm": (lambda: BertForMaskedLM(BertConfig(**LARGE)), masked),
}


def main(model: str, flags: list[str]) -> None:
    """Train."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    set_seed(arguments.seed)
    make, samples = MODELS[model]
    Trainer(model=make(), args=arguments, train_dataset=samples(), data_collator=default_data_collator).train()


if __name__ == "__main__":
    name, *words = asked(__doc__)
    main(name, words)
