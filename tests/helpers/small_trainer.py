"""A Trainer with a small model, in the process of a test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    """One layer, and its loss as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def trained(folder: Path, given: Mapping[str, Any] | None = None, **words: Any) -> list[dict[str, float]]:
    """Train on 40 samples, with the arguments `given` to `Trainer.train`; return what was logged."""
    torch.manual_seed(0)
    samples = [{"x": torch.rand(4), "labels": torch.ones(1)} for _ in range(40)]
    arguments = TrainingArguments(str(folder), **{"report_to": "none", "disable_tqdm": True, **words})
    trainer = Trainer(Model(), arguments, train_dataset=samples)
    trainer.train(**(given or {}))
    return trainer.state.log_history
