"""Images to numbers, the small convolutional net, and what the recipe images refuses, in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from transformers import AutoImageProcessor, AutoModelForImageClassification, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import images
from cpudist.training.recipes.classes import labels
from cpudist.training.recipes.vision import pictures, pixels
from cpudist.training.recipes.vision.convnet import ConvnetConfig, ConvnetForImageClassification
from cpudist.training.recipes.vision.pixels import Shape

_GREY = Shape(8, 1)
_COLOURS = Shape(6, 3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared images go into the test's folder and not into the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Red and blue squares of different sizes, a folder each; names that mean splits to datasets."""
    for name, colour in {"train": (200, 10, 10), "test": (10, 10, 200)}.items():
        (tmp_path / "squares" / name).mkdir(parents=True)
        for size in (6, 9, 12):
            Image.new("RGB", (size, size + 1), colour).save(tmp_path / "squares" / name / f"test_{size}.png")
    return tmp_path / "squares"


def test_folders_are_classes(folder: Path, arguments: TrainingArguments) -> None:
    parts = pictures.read_folder(str(folder), arguments)
    assert set(parts) == {"train"}
    columns = pictures.columns(parts["train"], None, None)
    values = labels.names_by_value(parts["train"], columns[1])
    assert values == {0: "test", 1: "train"}
    decoded = pixels.decode(
        parts["train"], columns, labels.ids_by_value(values, ["train", "test"]), _COLOURS, arguments
    )
    by_name = {row["name"]: row for row in (decoded[index] for index in range(len(decoded)))}
    assert by_name["test/test_9.png"]["labels"] == 1
    assert np.array_equal(
        _COLOURS.stack([by_name["train/test_12.png"]["pixels"]])[0, :, 3, 3], np.array([200, 10, 10], np.uint8)
    )
    again = pixels.decode(parts["train"], columns, labels.ids_by_value(values, ["train", "test"]), _COLOURS, arguments)
    assert decoded.cache_files
    assert again.cache_files == decoded.cache_files


def test_folders_may_be_divided_already(folder: Path, arguments: TrainingArguments) -> None:
    for name in ("red", "blue"):
        for part in ("train", "validation"):
            (folder / part / name).mkdir(parents=True)
            Image.new("L", (4, 4), 7).save(folder / part / name / "1.png")
    for stray in [*folder.glob("train/*.png"), *folder.glob("test/*.png")]:
        stray.unlink()
    parts = pictures.read_folder(str(folder), arguments)
    assert {part: len(samples) for part, samples in parts.items()} == {"train": 2, "validation": 2}
    assert labels.names_by_value(parts["train"], "label") == {0: "blue", 1: "red"}


def test_digits_are_scikit_learns_normalised_by_their_mean(arguments: TrainingArguments) -> None:
    samples = pictures.read("digits", None, arguments)["train"]
    names = labels.names_by_value(samples, "label")
    decoded = pixels.decode(samples, ("image", "label"), labels.ids_by_value(names, "0123456789"), _GREY, arguments)
    collate = pixels.normalising(decoded, _GREY)
    digits = load_digits()
    assert collate.mean == pytest.approx([digits.images.mean() / 16], rel=0.01)  # 17 shades to 256
    batch = collate([decoded[index] for index in range(len(decoded))])
    assert batch["labels"].tolist() == digits.target.tolist()
    assert batch["pixel_values"].shape == (1797, 1, 8, 8)
    assert float(batch["pixel_values"].mean()) == pytest.approx(0, abs=1e-5)
    assert float(batch["pixel_values"].std()) == pytest.approx(1, abs=1e-3)
    order = np.corrcoef(batch["pixel_values"].numpy().ravel(), digits.images.ravel())[0, 1]
    assert order > 0.999


def test_the_saved_processor_prepares_images_alike(tmp_path: Path, folder: Path) -> None:
    collate = pixels.Normalising(_COLOURS, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    collate.processor().save_pretrained(tmp_path)
    assert pixels.saved_normalising(str(tmp_path), _COLOURS) == collate
    assert pixels.saved_normalising(str(tmp_path), Shape(6, 1)) is None
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    path = str(tmp_path / "noise.png")
    Image.fromarray(noise).save(path)
    ours = collate([{"pixels": _COLOURS.decode({"bytes": None, "path": path}), "labels": 0}])["pixel_values"]
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(Image.open(path), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [2, 8, 32, 100])
def test_convnet_is_saved_and_gets_another_head(tmp_path: Path, size: int) -> None:
    torch.manual_seed(0)
    model = ConvnetForImageClassification(ConvnetConfig(size, 1, width=8, **labels.configured(["no", "yes", "?"])))
    batch = torch.randn(2, 1, size, size)
    target = torch.tensor([0, 2])
    with torch.no_grad():
        outputs = model.eval()(batch, labels=target)
    torch.testing.assert_close(outputs.loss, torch.nn.functional.cross_entropy(outputs.logits, target))
    model.save_pretrained(tmp_path)

    same = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert labels.known_names(same.config) == ["no", "yes", "?"]
    torch.testing.assert_close(same.eval()(batch).logits.detach(), outputs.logits)

    other = AutoModelForImageClassification.from_pretrained(
        tmp_path, ignore_mismatched_sizes=True, **labels.configured(["a", "b"])
    )
    torch.testing.assert_close(other.features.state_dict(), model.features.state_dict())
    assert other(batch).logits.shape == (2, 2)
    assert torch.isfinite(other(batch).logits).all()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--image_folder or --dataset_name"),
        (["--image_folder", "/missing/folder"], "/missing/folder"),
        (["--image_folder", str(Path(__file__).parent)], "does not hold two folders"),
        (["--dataset_name", "digits", "--label_column", "digit"], "the columns are: image, label"),
        (["--dataset_name", "digits", "--image_column", "label"], "holds no images"),
        (["--dataset_name", "digits", "--image_size", "0"], "--image_size"),
        (["--dataset_name", "digits", "--max_train_samples", "0"], "--max_train_samples"),
        (["--dataset_name", "digits", "--architecture", "resnet"], "resnet"),
        (["--dataset_name", "digits", "--architecture", "vit", "--patch_size", "9"], "--patch_size"),
        (["--dataset_name", "digits", "--config_overrides", "depth=3"], "depth"),
        (["--dataset_name", "digits", "--model_name_or_path", "/missing/model"], "/missing/model"),
    ],
)
def test_wrong_input_is_a_user_error(tmp_path: Path, words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        images.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", "--do_train", *words])
    assert "\n" not in str(caught.value)


def test_a_broken_image_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "broken.png").write_bytes(b"\x89PNG no more")
    with pytest.raises(UserError, match=r"train/broken\.png"):
        images.main(["--image_folder", str(folder), "--output_dir", str(tmp_path / "out"), "--use_cpu", "--do_train"])


@pytest.mark.parametrize(("module", "words"), [("PIL", "--image_folder ."), ("sklearn", "--dataset_name digits")])
def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, words: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # importing it fails, as if it were not installed
    with pytest.raises(UserError, match=r'pip install "cpudist\[recipes\]"'):
        images.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", "--do_train", *words.split()])
