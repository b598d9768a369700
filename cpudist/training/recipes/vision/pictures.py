"""Where labelled images come from: a folder per class, the hub, or scikit-learn's digits."""

from __future__ import annotations

import glob
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from numpy.typing import NDArray
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.common import extras, sources, splits

DIGITS = "digits"
DIGITS_SIZE = 8

_PARTS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_FOLDERS = "it must hold one folder of images per class, for two at least, or such folders below train and validation"


def read(name: str, config: str | None, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """The parts of a data set of the hub, or of the digits."""
    if name == DIGITS:
        return {"train": _digits()}
    parts: Mapping[str, Dataset] = sources.load(arguments, name, name=config)
    return parts


def read_folder(folder: str, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    """The images below `folder`, labelled with the names of the folders that they lie in."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"there is no folder {folder} (looked from {Path.cwd()})")
    if not _holds_folders(root):
        raise UserError(f"{folder} does not hold two folders; {_FOLDERS}")
    # Only where they hold folders: a class may be called "train". Left to itself, datasets would take part of a class
    # for a test set because of the names of its files.
    divided = {part: root / name for name, part in _PARTS.items() if _holds_folders(root / name)}
    parts = divided if "train" in divided else {"train": root}
    files = {part: f"{glob.escape(str(path.resolve()))}/**" for part, path in parts.items()}
    images: Mapping[str, Dataset] = sources.load(arguments, "imagefolder", data_files=files, drop_metadata=True)
    if "label" not in images["train"].column_names:
        raise UserError(f"the images below {folder} do not lie in one folder per class; {_FOLDERS}")
    return images


def columns(samples: Dataset, image: str | None, label: str | None) -> tuple[str, str]:
    """The columns with the images and the labels: those that the user wants, or the only ones that may be."""
    kinds = samples.features
    if image is None:
        image = _only(samples, [name for name in kinds if isinstance(kinds[name], Image)], "--image_column")
    if label is None:
        named = [name for name in kinds if isinstance(kinds[name], ClassLabel)]
        label = "label" if "label" in kinds else _only(samples, named, "--label_column")
    splits.column(samples, image, "--image_column")
    if not isinstance(kinds[image], Image):
        raise UserError(f"--image_column: the column {image} holds no images")
    return image, splits.column(samples, label, "--label_column")


def _digits() -> Dataset:
    """scikit-learn's 1797 handwritten digits, 8 x 8 pixels in 17 shades of grey, which come with the package."""
    extras.need("sklearn", "scikit-learn", "the data set digits")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = [_encoded(grey, f"digit {number}") for number, grey in enumerate(digits.images * 255 / 16)]
    features = Features(image=Image(), label=ClassLabel(names=list("0123456789")))
    return Dataset.from_dict({"image": images, "label": digits.target}, features)


def _encoded(grey: NDArray[np.float64], name: str) -> dict[str, Any]:
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.fromarray(grey.astype(np.uint8)).save(file, "png")
    return {"bytes": file.getvalue(), "path": name}


def _holds_folders(path: Path) -> bool:
    return path.is_dir() and sum(entry.is_dir() for entry in path.iterdir()) > 1


def _only(samples: Dataset, candidates: list[str], option: str) -> str:
    if len(candidates) != 1:
        found = "there is none" if not candidates else f"it may be {' or '.join(candidates)}"
        raise UserError(f"{option} is needed, {found}; {splits.columns(samples.column_names)}")
    return candidates[0]
