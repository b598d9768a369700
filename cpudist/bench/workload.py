"""The benchmarks' model: a BERT with 24.5 million parameters on random tokens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from cpudist.job import require

# Samples per rank and tokens per sample.
Shape = tuple[int, int]
SMALL: Shape = (2, 64)

_VOCABULARY, _WIDTH, _LAYERS, _HEADS = 30522, 384, 7, 12


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
    devices = require().backend.devices
    with torch.autocast(devices.type, dtype=dtype) if dtype is torch.bfloat16 else nullcontext():
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    devices.synchronize()
