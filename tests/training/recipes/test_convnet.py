"""The small convolutional net as a transformers model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

from cpudist.training.recipes.classification import class_names, label_config
from cpudist.training.recipes.convnet import ConvnetConfig, ConvnetForImageClassification


@pytest.mark.parametrize("size", [2, 8, 32, 100])
def test_convnet_is_saved_and_gets_another_head(tmp_path: Path, size: int) -> None:
    torch.manual_seed(0)
    model = ConvnetForImageClassification(ConvnetConfig(size, 1, width=8, **label_config(["no", "yes", "?"])))
    batch = torch.randn(2, 1, size, size)
    target = torch.tensor([0, 2])
    with torch.no_grad():
        outputs = model.eval()(batch, labels=target)
    torch.testing.assert_close(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits, target))
    model.save_pretrained(tmp_path)

    same = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert class_names(same.config) == ["no", "yes", "?"]
    torch.testing.assert_close(same.eval()(batch).logits.detach(), outputs.logits)

    other = AutoModelForImageClassification.from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, **label_config(["a", "b"])
    )
    torch.testing.assert_close(other.features.state_dict(), model.features.state_dict())
    assert other(batch).logits.shape == (2, 2)
    assert torch.isfinite(other(batch).logits).all()
