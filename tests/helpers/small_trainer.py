"""A model for Trainer in the process of a test."""

from __future__ import annotations

import torch


class Model(torch.nn.Module):
    """One layer, and its loss as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}
