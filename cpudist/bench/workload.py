"""What the benchmarks of training train: a BERT with 24.5 million parameters, on random tokens."""

from __future__ import annotations

import torch

# Samples per rank and tokens per sample.
Shape = tuple[int, int]
SMALL: Shape = (2, 64)

_VOCABULARY = 30522


def bert() -> torch.nn.Module:
    """The model, the same on every rank and at every call, in training mode."""
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=384,
        num_hidden_layers=7,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    torch.manual_seed(0)
    model: torch.nn.Module = BertForMaskedLM(config).train()
    return model


def tokens(rank: int, shape: Shape = SMALL) -> torch.Tensor:
    """One rank's batch; it serves as labels, too."""
    return torch.randint(_VOCABULARY, shape, generator=torch.Generator().manual_seed(rank))


def describe(model: torch.nn.Module, shape: Shape = SMALL) -> str:
    """The workload in words."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"BERT with {parameters / 1e6:.1f} million parameters, {shape[0]} x {shape[1]} tokens per rank"
