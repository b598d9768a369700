"""Models and data that the benchmarks train: a BERT on random tokens, and a GPT-2 on Python's own source code."""

from __future__ import annotations

import sysconfig
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from cpudist.job import require

# Samples per rank and tokens per sample.
Shape = tuple[int, int]
SMALL: Shape = (2, 64)

# Of both models, which have 24 million parameters.
_VOCABULARY, _WIDTH, _LAYERS, _HEADS = 30522, 384, 7, 12
_TEXT_BYTES = 1_000_000  # more than any schedule trains on


def bert(device: torch.device | str = "cpu") -> torch.nn.Module:
    """Return a BERT with 24.5 million parameters in training mode, the same on every rank and at every call."""
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_WIDTH,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
    )
    torch.manual_seed(0)
    model: Any = BertForMaskedLM(config).train().to(device)
    model.tie_weights()  # moving them to some devices makes two parameters of a tied one
    return model  # type: ignore[no-any-return]


def tokens(rank: int, shape: Shape = SMALL) -> torch.Tensor:
    """Return one rank's batch of this shape, which serves as its labels too."""
    return torch.randint(_VOCABULARY, shape, generator=torch.Generator().manual_seed(rank))


def describe(model: torch.nn.Module, shape: Shape = SMALL) -> str:
    """Return the model and one rank's batch in words."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"BERT with {parameters / 1e6:.1f} million parameters, {shape[0]} x {shape[1]} tokens per rank"


def train_on(tokens: torch.Tensor, model: Any, optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
    """Make one step with a batch, as `tokens` returns it, and wait for it; under autocast if `dtype` is bfloat16."""
    backend = require().backend
    with backend.autocast(dtype) if dtype is torch.bfloat16 else nullcontext():
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    backend.synchronize()


def write_gpt2(folder: Path, length: int) -> str:
    """Write the configuration of a new GPT-2 and text.txt for `trainer_script.py`; return the model in words.

    A token is a byte of the text, so that all jobs train on the same tokens without a tokenizer.

    Args:
        folder: where to write.
        length: tokens of a sample.
    """
    from transformers import GPT2Config

    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_embd=_WIDTH,
        n_layer=_LAYERS,
        n_head=_HEADS,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
    )
    config.save_pretrained(folder)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    (folder / "text.txt").write_bytes(b"".join(file.read_bytes() for file in files)[:_TEXT_BYTES])
    parameters = _WIDTH * (_VOCABULARY + length + 12 * _WIDTH * _LAYERS)
    return f"GPT-2 with {parameters / 1e6:.1f} million parameters"
