"""The recipe images: where images come from, and real handwritten digits on real ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import Result, mpirun, run, train
from PIL import Image
from sklearn.datasets import load_digits
from transformers import AutoImageProcessor, AutoModelForImageClassification, TrainingArguments

import cpudist.training.recipes.convnet  # noqa: F401 - makes its model type known to transformers
from cpudist.errors import UserError
from cpudist.training.recipes import classification, images
from cpudist.training.recipes.pixels import Shape, decode

BOUND = 400.0

_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_LEARN = ["--do_train", "--do_eval", "--learning_rate", "3e-3", "--per_device_train_batch_size", "16"]
_QUIET = ["--disable_tqdm", "true", "--logging_steps", "20", "--per_device_eval_batch_size", "50"]


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
    parts = images.read_folder(str(folder), arguments)
    assert set(parts) == {"train"}
    image, label = images.choose_columns(parts["train"], None, None)
    assert classification.names_by_value(parts["train"], label) == {0: "test", 1: "train"}
    part, shape = classification.Labelled(parts["train"], label, {0: 1, 1: 0}), Shape(6, 3)
    decoded = decode(part, image, shape, arguments)
    by_name = {row["name"]: row for row in (decoded[index] for index in range(len(decoded)))}
    assert by_name["test/test_9.png"]["labels"] == 1
    assert shape.stack([by_name["train/test_12.png"]["pixels"]])[0, :, 3, 3].tolist() == [200, 10, 10]
    again = decode(part, image, shape, arguments)
    assert decoded.cache_files
    assert again.cache_files == decoded.cache_files


def test_folders_may_be_divided_already(folder: Path, arguments: TrainingArguments) -> None:
    for name in ("red", "blue"):
        for part in ("train", "validation"):
            (folder / part / name).mkdir(parents=True)
            Image.new("L", (4, 4), 7).save(folder / part / name / "1.png")
    for stray in [*folder.glob("train/*.png"), *folder.glob("test/*.png")]:
        stray.unlink()
    parts = images.read_folder(str(folder), arguments)
    assert {part: len(samples) for part, samples in parts.items()} == {"train": 2, "validation": 2}
    assert classification.names_by_value(parts["train"], "label") == {0: "blue", 1: "red"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "--image_folder or --dataset_name"),
        (["--image_folder", "/missing/folder"], "/missing/folder"),
        (["--image_folder", str(Path(__file__).parent)], "does not hold two folders"),
        (["--dataset_name", "digits", "--label_column", "digit"], "name one of: image, label"),
        (["--dataset_name", "digits", "--image_column", "picture"], "name one of: image, label"),
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


def _images(ranks: int, output: Path, *words: str, backend: str = "gloo") -> Result:
    words = ("images", "--output_dir", str(output), *_QUIET, *words)
    return run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _digits() -> list[Image.Image]:
    grey = (load_digits().images * 255 / 16).astype(np.uint8)
    return [Image.fromarray(image) for image in grey]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of scikit-learn's digits: 1500 to train on and 297 to evaluate on, below a folder per class."""
    folder = tmp_path_factory.mktemp("digits")
    for number, (picture, digit) in enumerate(zip(_digits(), load_digits().target, strict=True)):
        path = folder / ("train" if number < 1500 else "validation") / _NAMES[digit]
        path.mkdir(parents=True, exist_ok=True)
        picture.save(path / f"{number}.png")
    return str(folder)


@pytest.mark.job
def test_a_convolutional_net_learns_the_digits(tmp_path: Path) -> None:
    output = tmp_path / "out"
    words = ["--dataset_name", "digits", "--validation_split_percentage", "20", "--num_train_epochs", "4"]
    result = _images(2, output, *words, *_LEARN, "--save_strategy", "no", backend="ccl")
    assert result.returncode == 0, result.output

    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    evaluated = _json(output / "eval_results.json")
    assert evaluated["eval_accuracy"] > 0.95
    assert evaluated["eval_f1"] > 0.95
    assert record["results"]["accuracy"]["last"] == evaluated["eval_accuracy"]
    assert len(record["results"]["sample"].splitlines()) == 8
    assert result.stdout.count("***** eval metrics *****") == 1, "rank 0 alone prints"
    assert "Traceback" not in result.stderr

    # The saved model predicts without the recipe, with the image processor that is saved beside it.
    model = AutoModelForImageClassification.from_pretrained(output)
    processor = AutoImageProcessor.from_pretrained(output)
    with torch.no_grad():
        logits = model(**processor(_digits(), return_tensors="pt", input_data_format="channels_last")).logits
    assert (logits.argmax(dim=1).numpy() == load_digits().target).mean() > 0.95


@pytest.mark.job
def test_a_vit_learns_from_folders_and_its_metrics_are_the_same_on_any_number_of_ranks(
    digits: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    words = ["--image_folder", digits, "--image_size", "12", "--grayscale", "--num_train_epochs", "4"]
    words += ["--architecture", "vit", "--config_overrides", "hidden_size=64,num_hidden_layers=2,initializer_range=0.1"]
    result = _images(2, output, *words, *_LEARN, "--save_strategy", "no", backend="ccl")
    assert result.returncode == 0, result.output
    assert set(_json(output / "config.json")["label2id"]) == set(_NAMES)
    trained = _json(output / "eval_results.json")
    assert trained["eval_accuracy"] > 0.7

    keys = ("eval_accuracy", "eval_f1", "eval_loss")
    words = ["--image_folder", digits, "--model_name_or_path", str(output), "--do_eval"]
    words += ["--disable_tqdm", "true", "--per_device_eval_batch_size", "8"]
    # Two ranks have just done it; 297 images are no multiple of anybody's batches.
    result = _images(3, tmp_path / "three", *words)
    assert result.returncode == 0, result.output
    images.main(["--output_dir", str(tmp_path / "one"), "--use_cpu", *words])
    for name in ("three", "one"):
        evaluated = _json(tmp_path / name / "eval_results.json")
        assert [evaluated[key] for key in keys] == pytest.approx([trained[key] for key in keys], rel=1e-5)


@pytest.mark.job
def test_goes_on_from_checkpoints_and_returns_to_the_best(digits: str, tmp_path: Path) -> None:
    """A convolutional net on folders of images."""
    words = ["--image_folder", digits, "--image_size", "8", "--grayscale", *_LEARN]
    words += ["--lr_scheduler_type", "constant", "--logging_steps", "1"]
    words += ["--save_strategy", "steps", "--save_steps", "10", "--eval_strategy", "steps", "--eval_steps", "10"]
    # "Best" means the lowest accuracy here, so that the best model is certainly not the last one.
    words += ["--load_best_model_at_end", "--metric_for_best_model", "accuracy", "--greater_is_better", "false"]
    words += ["--max_steps", "30"]
    whole = _images(2, tmp_path / "whole", *words)
    assert whole.returncode == 0, whole.output
    words += ["--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-20")]
    resumed = _images(2, tmp_path / "resumed", *words)
    assert resumed.returncode == 0, resumed.output

    paths = [tmp_path / name / "checkpoint-30" / "trainer_state.json" for name in ("whole", "resumed")]
    state, other = (_json(path) for path in paths)
    losses, others = ([entry["loss"] for entry in each["log_history"] if "loss" in entry] for each in (state, other))
    assert len(losses) == 30
    assert others == pytest.approx(losses, rel=1e-3)

    accuracies = [entry["eval_accuracy"] for entry in state["log_history"] if "eval_accuracy" in entry]
    assert accuracies[0] < accuracies[-1], "it learns"
    for name in ("whole", "resumed"):
        evaluated = _json(tmp_path / name / "eval_results.json")
        assert evaluated["eval_accuracy"] == pytest.approx(min(accuracies))
