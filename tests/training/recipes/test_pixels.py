"""Images to numbers, as they are trained on and as the saved image processor prepares them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import AutoImageProcessor, TrainingArguments

from cpudist.training.recipes import images, pixels
from cpudist.training.recipes.classification import Labelled
from cpudist.training.recipes.pixels import Shape

_GREY = Shape(8, 1)
_COLOURS = Shape(6, 3)


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


def test_digits_are_scikit_learns_normalized_by_their_mean(arguments: TrainingArguments) -> None:
    samples = images.read_digits()
    part = Labelled(samples, "label", {digit: digit for digit in range(10)})
    decoded = pixels.decode(part, "image", _GREY, arguments)
    collate = pixels.fit_collator(decoded, _GREY)
    digits = load_digits()
    assert collate.mean == pytest.approx([digits.images.mean() / 16], rel=0.01)  # 17 shades to 256
    batch = collate([decoded[index] for index in range(len(decoded))])
    assert batch["labels"].tolist() == digits.target.tolist()
    assert batch["pixel_values"].shape == (1797, 1, 8, 8)
    assert float(batch["pixel_values"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(batch["pixel_values"].std()) == pytest.approx(1, abs=1e-3)
    order = np.corrcoef(batch["pixel_values"].numpy().ravel(), digits.images.ravel())[0, 1]
    assert order > 0.999


def test_the_saved_processor_prepares_images_alike(tmp_path: Path) -> None:
    collate = pixels.ImageCollator(_COLOURS, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    collate.processor().save_pretrained(tmp_path)
    assert pixels.pretrained_collator(str(tmp_path), _COLOURS) == collate
    assert pixels.pretrained_collator(str(tmp_path), Shape(6, 1)) is None
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    path = str(tmp_path / "noise.png")
    Image.fromarray(noise).save(path)
    ours = collate([{"pixels": _COLOURS.decode({"bytes": None, "path": path}), "labels": 0}])["pixel_values"]
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(Image.open(path), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
