"""The example of image classification, on digits and on a folder of images."""

import json
from pathlib import Path

import pytest
from PIL import Image
from trainer_examples import trained


@pytest.mark.job
def test_digits_are_learnt_and_a_folder_goes_on_from_that_model(tmp_path: Path) -> None:
    """On two ranks; then two classes in colour, of which one process and two ranks classify as many rightly."""
    digits, colors = tmp_path / "digits", tmp_path / "colors"
    words = ["--num_train_epochs", "6", "--learning_rate", "3e-3", "--per_device_train_batch_size", "16"]
    _, logged = trained(digits, 2, "images", *words, options=["--backend", "gloo"])
    assert logged["eval_accuracy"][-1] > 0.6

    for name, color in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (colors / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8), color).save(colors / name / f"{number}.png")
    words = ["--data_dir", str(colors), "--model_name", str(digits), "--max_steps", "3"]
    _, alone = trained(tmp_path / "1", 1, "images", *words)
    _, logged = trained(tmp_path / "2", 2, "images", *words, options=["--backend", "gloo"])
    config = json.loads((tmp_path / "2" / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "red"}
    assert logged["eval_accuracy"] == alone["eval_accuracy"]
