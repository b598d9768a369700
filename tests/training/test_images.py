"""The recipe images on real handwritten digits, from scikit-learn and from folders of PNGs, on real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import Result, mpirun, run, train
from PIL import Image
from sklearn.datasets import load_digits
from transformers import AutoImageProcessor, AutoModelForImageClassification

import cpudist.training.recipes.vision.convnet  # noqa: F401 - makes its model type known to transformers

BOUND = 150.0

_NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_LEARN = ["--do_train", "--do_eval", "--learning_rate", "3e-3", "--per_device_train_batch_size", "16"]
_QUIET = ["--disable_tqdm", "true", "--logging_steps", "20", "--per_device_eval_batch_size", "50"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared images go into the test's folder and not into the user's own cache."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def _images(ranks: int, output: Path, *words: str, backend: str = "gloo") -> Result:
    words = ("images", "--output_dir", str(output), *_QUIET, *words)
    return run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _pictures() -> list[Image.Image]:
    grey = (load_digits().images * 255 / 16).astype(np.uint8)
    return [Image.fromarray(image) for image in grey]


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

    # What was saved does it without the recipe, with the image processor that lies beside the model.
    model = AutoModelForImageClassification.from_pretrained(output)
    processor = AutoImageProcessor.from_pretrained(output)
    with torch.no_grad():
        logits = model(**processor(_pictures(), return_tensors="pt", input_data_format="channels_last")).logits
    assert (logits.argmax(dim=1).numpy() == load_digits().target).mean() > 0.95


def test_a_vit_learns_the_digits(tmp_path: Path) -> None:
    words = ["--dataset_name", "digits", "--validation_split_percentage", "20", "--num_train_epochs", "4"]
    words += ["--architecture", "vit", "--config_overrides", "hidden_size=64,num_hidden_layers=2,initializer_range=0.1"]
    result = _images(2, tmp_path / "out", *words, *_LEARN, "--save_strategy", "no", backend="ccl")
    assert result.returncode == 0, result.output
    assert _json(tmp_path / "out" / "eval_results.json")["eval_accuracy"] > 0.8


def test_folders_are_classes_and_metrics_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    folder, output = tmp_path / "digits", tmp_path / "out"
    for number, (picture, digit) in enumerate(zip(_pictures(), load_digits().target, strict=True)):
        path = folder / ("train" if number < 1500 else "validation") / _NAMES[digit]
        path.mkdir(parents=True, exist_ok=True)
        picture.save(path / f"{number}.png")

    words = ["--image_folder", str(folder), "--image_size", "12", "--grayscale", "--num_train_epochs", "3"]
    result = _images(2, output, *words, *_LEARN, "--config_overrides", "width=16", "--save_strategy", "no")
    assert result.returncode == 0, result.output
    assert set(_json(output / "config.json")["label2id"]) == set(_NAMES)
    trained = _json(output / "eval_results.json")
    assert trained["eval_accuracy"] > 0.7

    names = ("eval_accuracy", "eval_f1", "eval_loss")
    words = ["--image_folder", str(folder), "--model_name_or_path", str(output), "--do_eval"]
    for ranks in (1, 3):  # two have just done it; 297 images are no multiple of anybody's batches
        result = _images(ranks, tmp_path / f"eval-{ranks}", *words, "--per_device_eval_batch_size", "8")
        assert result.returncode == 0, result.output
        evaluated = _json(tmp_path / f"eval-{ranks}" / "eval_results.json")
        assert [evaluated[name] for name in names] == pytest.approx([trained[name] for name in names], rel=1e-5)


def test_goes_on_from_checkpoints_and_returns_to_the_best(tmp_path: Path) -> None:
    words = ["--dataset_name", "digits", "--lr_scheduler_type", "constant", *_LEARN, "--logging_steps", "1"]
    words += ["--save_strategy", "steps", "--save_steps", "10", "--eval_strategy", "steps", "--eval_steps", "10"]
    # The best is here what nobody would want, the lowest accuracy, since that is certainly not the last model.
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


def test_user_errors_are_one_line_of_one_rank(tmp_path: Path) -> None:
    result = _images(2, tmp_path / "out", "--dataset_name", "digits", "--image_column", "picture", "--do_train")
    assert result.returncode == 2, result.output
    assert "the columns are: image, label" in result.stderr, result.output
    assert result.stderr.count("\n") == 1, result.output
