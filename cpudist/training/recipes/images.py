r"""Image classification, from a folder per class, the hub, or scikit-learn's digits: with a new or a pretrained model.

Handwritten digits, in half a minute (pip install "cpudist[recipes]"):

    mpirun -n 2 cpudist-train images --dataset_name digits --output_dir runs/images --do_train --do_eval \
        --num_train_epochs 10 --learning_rate 3e-3 --save_strategy no

A new model is a small convolutional net with width=32, or with --architecture vit a ViT with
hidden_size=128,num_hidden_layers=4, unless --config_overrides says otherwise.
"""

from __future__ import annotations

import glob
import importlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import ClassLabel, Dataset, Features, Image
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PretrainedConfig,
    PreTrainedModel,
    TrainingArguments,
    ViTConfig,
)
from transformers.hf_argparser import HfArg

from cpudist.backends import layouts
from cpudist.console import first_line
from cpudist.errors import UserError
from cpudist.training.recipes import classification, data, models, script
from cpudist.training.recipes.convnet import ConvnetConfig
from cpudist.training.recipes.pixels import Shape, decode, fit_collator, pretrained_collator

SHARDING = layouts.IMAGES  # how a mesh of devices cuts the parameters (--mesh)

_DIGITS, _DIGITS_SIZE = "digits", 8
_DEFAULT_SIZE = 32
# A core trains it in minutes. No dropout, as in clm.
_SMALL_VIT = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.05,  # 0.02 suits models six times as wide; a narrow one would need epochs to start learning
}
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_FOLDERS = "it must hold one folder of images per class, for two at least, or such folders below train and validation"


@dataclass
class ModelArguments(script.NewModelArguments):
    """Which model."""

    architecture: str = HfArg(
        default="convnet",
        help="Of a new model: a small convolutional net, or a small ViT.",
        metadata={"choices": ["convnet", "vit"]},
    )
    patch_size: int | None = HfArg(
        default=None, help="Of a new vit: pixels of a patch's side (default: an eighth of the image's, but 2 at least)."
    )


@dataclass
class DataArguments(data.DataArguments):
    """Which images, and how many of them. --dataset_name digits is a data set of scikit-learn."""

    image_folder: str | None = HfArg(
        default=None, help="A folder with one folder of images per class, or with such folders train and validation."
    )
    image_column: str | None = HfArg(default=None, help="Column with the images (default: the only one).")
    label_column: str | None = HfArg(default=None, help="Column with the label (default: the only one).")
    image_size: int | None = HfArg(
        default=None, help="Pixels a side (default: the pretrained model's, 8 for digits, otherwise 32)."
    )
    grayscale: bool = HfArg(default=False, help="For a new model: drop the colours (digits have none).")

    def check(self, arguments: TrainingArguments) -> None:
        """Raise `UserError` unless the options name one source of data."""
        if (self.image_folder is None) == (self.dataset_name is None):
            raise UserError("give --image_folder or --dataset_name (a hub name, or digits), one of them")


def main(argv: list[str]) -> None:
    """Run the recipe with options, or with those in a JSON or YAML file; raise `UserError` where they are wrong."""
    options = script.start("images", __doc__, argv, ModelArguments, DataArguments)
    _need("PIL", "pillow", "the recipe images")
    arguments, name = options.training, options.model.model_name_or_path
    arguments.remove_unused_columns = False  # the collator needs columns that the model does not have
    config = None if name is None else models.load_pretrained(AutoConfig, name)

    splits = _read(options.data, arguments)
    image, label = choose_columns(next(iter(splits.values())), options.data.image_column, options.data.label_column)
    names, train, evaluation = classification.choose_samples(splits, label, config, options)
    shape = _shape(config, options.data)
    collate = None if name is None else pretrained_collator(name, shape)
    train_pixels = evaluation_pixels = None
    if train is not None and (arguments.do_train or collate is None):
        train_pixels = decode(train, image, shape, arguments)
        collate = collate or fit_collator(train_pixels, shape)
    if evaluation is not None:
        evaluation_pixels = decode(evaluation, image, shape, arguments)
    if collate is None:
        raise UserError(f"{name} does not say how images are normalized; give images to train on")

    trainer = classification.make_trainer(
        _model(options.model, shape, names, arguments),
        arguments,
        collate,
        train_dataset=train_pixels if arguments.do_train else None,
        eval_dataset=evaluation_pixels,
        processing_class=collate.processor(),
    )
    what = f"images of {len(names)} classes, {shape.size} x {shape.size} x {shape.channels},"
    script.run(trainer, "images", options.checkpoint, what, evaluate=classification.evaluate)
    if trainer.is_world_process_zero():
        shown = classification.select_examples(train_pixels if evaluation_pixels is None else evaluation_pixels)
        described = [name or f"image {number}" for number, name in enumerate(shown[:]["name"], 1)]
        classification.report_predictions(trainer, shown, described, names)


def _need(module: str, package: str, what: str) -> None:
    """Raise `UserError` unless `module` of the PyPI project `package` can be imported for `what`."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(f'{what} needs {package}; pip install "cpudist[recipes]" brings it') from error


def _read(options: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    if options.image_folder is not None:
        return read_folder(options.image_folder, arguments)
    return {"train": read_digits()} if options.dataset_name == _DIGITS else data.load_dataset(options, arguments)


def read_folder(folder: str, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """Read the images below `folder`, labelled by their folders; raise `UserError` unless there are two classes."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(
            f"there is no folder {folder}; name the one whose folders are the classes (looked from {Path.cwd()})"
        )
    if not _holds_folders(root):
        raise UserError(f"{folder} does not hold two folders; {_FOLDERS}")
    # A class may be called "train", so a split is a folder that holds folders. datasets alone would also take files of
    # a class for a test set because of their names.
    divided = {split: root / name for name, split in _SPLITS.items() if _holds_folders(root / name)}
    splits = divided if "train" in divided else {"train": root}
    files = {split: f"{glob.escape(str(path.resolve()))}/**" for split, path in splits.items()}
    images: Mapping[str, Dataset] = data.load("imagefolder", arguments, data_files=files, drop_metadata=True)
    if "label" not in images["train"].column_names:
        raise UserError(f"the images below {folder} do not lie in one folder per class; {_FOLDERS}")
    return images


def _holds_folders(path: Path) -> bool:
    return path.is_dir() and sum(entry.is_dir() for entry in path.iterdir()) > 1


def read_digits() -> Dataset:
    """Return scikit-learn's 1797 handwritten digits, 8 x 8 pixels in 17 greys, or raise `UserError`."""
    _need("sklearn", "scikit-learn", "the data set digits")
    from PIL import Image as Pillow
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = []
    for number, grey in enumerate((digits.images * 255 / 16).astype(np.uint8)):
        file = io.BytesIO()
        Pillow.fromarray(grey).save(file, "png")
        images.append({"bytes": file.getvalue(), "path": f"digit {number}"})
    features = Features(image=Image(), label=ClassLabel(names=list("0123456789")))
    return Dataset.from_dict({"image": images, "label": digits.target}, features)


def choose_columns(samples: Dataset, image: str | None, label: str | None) -> tuple[str, str]:
    """Choose the columns of images and labels: those that are named, or the only ones, or raise `UserError`."""
    kinds = samples.features
    if image is None:
        image = _only(samples, Image, "--image_column")
    if label is None:
        label = "label" if "label" in kinds else _only(samples, ClassLabel, "--label_column")
    if not isinstance(kinds[data.check_column(samples, image, "--image_column")], Image):
        raise UserError(f"--image_column: the column {image} holds no images; {data.describe_columns(samples)}")
    return image, data.check_column(samples, label, "--label_column")


def _only(samples: Dataset, kind: Any, option: str) -> str:
    candidates = [name for name, feature in samples.features.items() if isinstance(feature, kind)]
    if len(candidates) != 1:
        found = "there is none" if not candidates else f"it may be {' or '.join(candidates)}"
        raise UserError(f"{option} is needed, {found}; {data.describe_columns(samples)}")
    return str(candidates[0])


def _shape(config: PretrainedConfig | None, options: DataArguments) -> Shape:
    digits = options.dataset_name == _DIGITS
    size, channels = _DIGITS_SIZE if digits else _DEFAULT_SIZE, 1 if digits or options.grayscale else 3
    if config is not None:
        size, channels = getattr(config, "image_size", None) or 224, getattr(config, "num_channels", 3)
    size = size if options.image_size is None else options.image_size
    if not isinstance(size, int) or size < 2:
        raise UserError(f"--image_size must be 2 or more, not {size}")
    return Shape(size, channels)


def _model(model: ModelArguments, shape: Shape, names: list[str], arguments: TrainingArguments) -> PreTrainedModel:
    name = model.model_name_or_path
    if name is not None:
        pretrained = classification.load_classifier(AutoModelForImageClassification, name, arguments, names)
        _check_size(pretrained, shape)
        return pretrained
    patch = model.patch_size or max(2, shape.size // 8)
    if not 0 < patch <= shape.size:
        raise UserError(f"--patch_size must lie between 1 and the images' {shape.size} pixels")
    options = {"image_size": shape.size, "num_channels": shape.channels, **classification.label_config(names)}
    vit = model.architecture == "vit"
    config = ViTConfig(**_SMALL_VIT, patch_size=patch, **options) if vit else ConvnetConfig(**options)
    return models.new_model(AutoModelForImageClassification, config, model.config_overrides, arguments)


def _check_size(model: PreTrainedModel, shape: Shape) -> None:
    """Raise `UserError` unless the model takes images of `shape`."""
    try:
        with torch.no_grad():
            model(pixel_values=torch.zeros(1, shape.channels, shape.size, shape.size))
    except (ValueError, RuntimeError) as error:
        size, reason = f"{shape.size} x {shape.size} pixels", first_line(error)
        raise UserError(f"--image_size: the model does not take {size}: {reason}; leave it out") from error
