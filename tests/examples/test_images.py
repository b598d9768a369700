"""The example of image classification, on digits and on a folder of images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from jobs import mpirun, run, train
from PIL import Image

pytestmark = pytest.mark.job

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "images.py")
BOUND = 300.0
QUIET = ["--save_strategy", "no", "--disable_tqdm", "true", "--report_to", "none"]


def test_digits_are_learnt_and_a_folder_goes_on_from_that_model(tmp_path: Path) -> None:
    """On two ranks; then two classes in colour, of which one process and two ranks classify as many rightly."""
    # Outside a job, accelerate would take torch_xla where it is installed.
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "USE_TORCH_XLA": "0"}
    digits = tmp_path / "digits"
    words = [EXAMPLE, "--output_dir", str(digits), "--num_train_epochs", "6", "--learning_rate", "3e-3", *QUIET]
    result = run(mpirun(2, *train("--backend", "gloo", *words, "--per_device_train_batch_size", "16")), BOUND, cache)
    assert result.returncode == 0, result.output
    assert _accuracy(digits) > 0.6

    for name, color in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "colors" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8), color).save(tmp_path / "colors" / name / f"{number}.png")
    words = [EXAMPLE, "--data_dir", str(tmp_path / "colors"), "--model_name", str(digits), "--max_steps", "3", *QUIET]
    jobs = {"1": [sys.executable, *words, "--use_cpu"], "2": mpirun(2, *train("--backend", "gloo", *words))}
    for ranks, command in jobs.items():
        result = run([*command, "--output_dir", str(tmp_path / ranks)], BOUND, cache)
        assert result.returncode == 0, result.output
    config = json.loads((tmp_path / "2" / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "red"}
    assert _accuracy(tmp_path / "2") == _accuracy(tmp_path / "1")


def _accuracy(output: Path) -> float:
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return float(history[-1]["eval_accuracy"])
