"""Convert images to numbers: decode them to squares of one size, and normalize them.

The first rank of each node decodes them once, and caches them as bytes, a quarter of the size of floats. Mean and
standard deviation are those of the data to train on. They are computed from whole numbers, so they do not depend on the
number of ranks, and are saved with the model as transformers' image processors save them.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from datasets import Dataset, Image
from numpy.typing import NDArray
from torch import Tensor
from transformers import TrainingArguments
from transformers.image_processing_utils import BaseImageProcessor

from cpudist import api
from cpudist.errors import UserError
from cpudist.training.recipes.classification import Labelled
from cpudist.training.recipes.data import map_cached
from cpudist.training.recipes.models import IGNORED

try:  # by this name in transformers 5, which otherwise warns that torchvision is missing
    from transformers import ViTImageProcessorPil as _Processor
except ImportError:
    from transformers import ViTImageProcessor as _Processor

_PER_BATCH = 1000


@dataclass(frozen=True)
class Shape:
    """The shape that every image is converted to: `size` pixels a side, and 1 (grey) or 3 (RGB) channels."""

    size: int
    channels: int

    def decode(self, image: dict[str, Any]) -> bytes:
        """Decode an image, its "bytes" or the file "path", to bytes (channels, size, size), or raise `UserError`."""
        from PIL import Image as Pillow
        from PIL import ImageOps

        try:
            with Pillow.open(io.BytesIO(image["bytes"]) if image["bytes"] else image["path"]) as opened:
                picture = ImageOps.exif_transpose(opened).convert("L" if self.channels == 1 else "RGB")
        except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:  # all of them Pillow raises
            raise UserError(f"cannot read the image {image['path'] or ''}: {error}; remove or replace it") from error
        if picture.size != (self.size, self.size):
            picture = picture.resize((self.size, self.size), Pillow.Resampling.BILINEAR)
        pixels = np.asarray(picture).reshape(self.size, self.size, self.channels)
        return pixels.transpose(2, 0, 1).tobytes()

    def stack(self, pixels: list[bytes]) -> NDArray[np.uint8]:
        """Join decoded images to one array, shape (images, channels, size, size)."""
        return np.frombuffer(b"".join(pixels), np.uint8).reshape(-1, self.channels, self.size, self.size)


@dataclass(frozen=True)
class ImageCollator:
    """Make a model's inputs of decoded images: values from 0 to 1, normalized by each channel's mean and deviation."""

    shape: Shape
    mean: list[float]
    std: list[float]

    def __call__(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Return "pixel_values", float32, shape (batch, channels, size, size), and "labels", shape (batch,)."""
        pixels = self.shape.stack([sample["pixels"] for sample in samples]).astype(np.float32)
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return {
            "pixel_values": (torch.from_numpy(pixels) / 255 - mean) / std,
            "labels": torch.tensor([sample["labels"] for sample in samples]),
        }

    def processor(self) -> BaseImageProcessor:
        """Return an image processor that prepares images alike, to be saved with the model."""
        size = {"height": self.shape.size, "width": self.shape.size}
        return _Processor(size=size, image_mean=self.mean, image_std=self.std)


def decode(part: Labelled, column: str, shape: Shape, arguments: TrainingArguments) -> Dataset:
    """Decode the images in `column`; returns columns "pixels", "labels" and "name"."""
    samples = part.samples.cast_column(column, Image(decode=False))
    options = {"image": column, "label": part.column, "ids": part.ids, "shape": shape}
    desc = f"Decoding images to {shape.size} x {shape.size} pixels"
    return map_cached(samples, _decode, options, arguments, desc, batch_size=_PER_BATCH // 10)


def fit_collator(samples: Dataset, shape: Shape) -> ImageCollator:
    """Make a collator that normalizes by mean and standard deviation of decoded `samples`; every rank counts a part."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    share = samples.select(range(len(samples) * rank // ranks, len(samples) * (rank + 1) // ranks))
    counts = torch.zeros(shape.channels, 256, dtype=torch.int64)
    for start in range(0, len(share), _PER_BATCH):
        images = shape.stack(share[start : start + _PER_BATCH]["pixels"])
        for channel in range(shape.channels):
            counts[channel] += torch.from_numpy(np.bincount(images[:, channel].ravel(), minlength=256))
    if ranks > 1:
        counts = (api.mean(counts) * ranks).round()
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = counts / counts.sum(dim=1, keepdim=True).double()
    mean = shares @ values
    std = (shares @ values.square() - mean.square()).clamp(min=0).sqrt()
    # Pixels that are all equal are not scaled.
    return ImageCollator(shape, mean.tolist(), [value if value > 1e-3 else 1.0 for value in std.tolist()])


def pretrained_collator(name: str, shape: Shape) -> ImageCollator | None:
    """Return the normalization that is saved with a pretrained model; None if there is none for images of `shape`."""
    try:
        saved = BaseImageProcessor.get_image_processor_dict(name)[0]
    except OSError:
        return None
    if not saved.get("do_normalize", True):
        return ImageCollator(shape, [0.0] * shape.channels, [1.0] * shape.channels)
    mean, std = (saved.get(key) or [] for key in ("image_mean", "image_std"))
    suits = len(mean) == len(std) == shape.channels
    return ImageCollator(shape, list(mean), list(std)) if suits else None


def _decode(
    batch: dict[str, list[Any]], image: str, label: str, ids: dict[Any, int], shape: Shape
) -> dict[str, list[Any]]:
    return {
        "pixels": [shape.decode(encoded) for encoded in batch[image]],
        # The model may not know the classes of samples that only the normalization is computed from.
        "labels": [ids.get(value, IGNORED) for value in batch[label]],
        "name": ["/".join(PurePath(encoded["path"] or "").parts[-2:]) for encoded in batch[image]],
    }
