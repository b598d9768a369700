"""Image classification, from a folder per class, the hub, or scikit-learn's digits: from scratch or pretrained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PretrainedConfig,
    PreTrainedModel,
    TrainingArguments,
    ViTConfig,
    set_seed,
)

from cpudist.errors import UserError
from cpudist.training.recipes.classes import classification, labels
from cpudist.training.recipes.common import course, extras, models, outcome, splits
from cpudist.training.recipes.common.arguments import check_training_arguments, checkpoint_to_resume, parse
from cpudist.training.recipes.common.evaluation import ExactTrainer
from cpudist.training.recipes.vision import pictures, pixels
from cpudist.training.recipes.vision.convnet import ConvnetConfig

_DEFAULT_SIZE = 32
# From scratch, unless --config_overrides says more: a model that a CPU core trains in minutes. Without dropout, as clm.
_SMALL_VIT = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.05,  # 0.02 suits nets six times as wide; a narrow one would lose epochs on starting
}


@dataclass
class ModelArguments:
    """Which model."""

    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Pretrained image classifier: a folder or a hub name. Without it: from scratch."},
    )
    architecture: str = field(
        default="convnet",
        metadata={"help": "From scratch: a small convolutional net, or a small ViT.", "choices": ["convnet", "vit"]},
    )
    patch_size: int | None = field(
        default=None,
        metadata={
            "help": "From scratch, vit: pixels of a patch's side (default: an eighth of the image's, but 2 at least)."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={
            "help": "From scratch: changes of the configuration, e.g. width=64,stages=3 of convnet (32, "
            "as many as fit) or hidden_size=192,num_hidden_layers=6 of vit (128, 4)."
        },
    )


@dataclass
class DataArguments:
    """Which images, and how many of them."""

    image_folder: str | None = field(
        default=None,
        metadata={"help": "A folder with one folder of images per class, or with such folders train and validation."},
    )
    dataset_name: str | None = field(
        default=None,
        metadata={"help": f"A data set of the hub, or {pictures.DIGITS}, which scikit-learn brings along."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    image_column: str | None = field(default=None, metadata={"help": "Column with the images (default: the only one)."})
    label_column: str | None = field(default=None, metadata={"help": "Column with the label (default: the only one)."})
    image_size: int | None = field(
        default=None,
        metadata={"help": "Pixels a side (default: the pretrained model's, 8 for digits, otherwise 32)."},
    )
    grayscale: bool = field(default=False, metadata={"help": "From scratch: drop the colours (digits have none)."})
    validation_split_percentage: int | None = field(
        default=None,
        metadata={"help": "Without images to evaluate on: how many of those to train on to hold out (default 5)."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on that many images at most."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on that many images at most."})


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("images", __doc__ or "", types, argv)
    check_training_arguments(arguments)
    extras.need("PIL", "pillow", "the recipe images")
    arguments.remove_unused_columns = False  # the collator makes what the model gets from what has another name
    checkpoint = checkpoint_to_resume(arguments)
    outcome.start_record(arguments.output_dir)

    config = _pretrained_config(model_arguments)
    data = _prepare(_read(data_arguments, arguments), config, model_arguments, data_arguments, arguments)
    set_seed(arguments.seed)  # now: a new model must be the same on every rank, whoever prepared the data
    model = _model(model_arguments, data)

    trainer = ExactTrainer(
        score=classification.score,
        metrics=classification.metrics,
        compute_loss_func=classification.loss(arguments),
        model=model,
        args=arguments,
        train_dataset=data.train,
        eval_dataset=data.evaluation,
        processing_class=data.normalising.processor(),
        data_collator=data.normalising,
    )
    if trainer.is_world_process_zero():
        shape = data.normalising.shape
        images = f"{len(data.train) if data.train else 0} images to train on"
        size = f"{shape.size} x {shape.size} x {shape.channels}"
        print(f"images: {model.num_parameters():,} parameters, {len(data.names)} classes, {images}, {size}", flush=True)
    course.run(trainer, "images", checkpoint, classification.evaluate)
    if trainer.is_world_process_zero():
        shown = classification.some(data.train if data.evaluation is None else data.evaluation)
        described = [name or f"image {number}" for number, name in enumerate(shown[:]["name"], 1)]
        classification.show(trainer, shown, described, data.names)


@dataclass
class _Data:
    """What the images came to: "pixels" and "labels", what the labels are called, and how to go on with the pixels."""

    train: Dataset | None
    evaluation: Dataset | None
    names: list[str]
    normalising: pixels.Normalising


def _read(data: DataArguments, arguments: TrainingArguments) -> Mapping[str, Dataset]:
    if (data.image_folder is None) == (data.dataset_name is None):
        raise UserError("give --image_folder or --dataset_name (a hub name, or digits), one of them")
    if data.image_folder is not None:
        return pictures.read_folder(data.image_folder, arguments)
    return pictures.read(str(data.dataset_name), data.dataset_config_name, arguments)


def _pretrained_config(arguments: ModelArguments) -> PretrainedConfig | None:
    name = arguments.model_name_or_path
    return models.load(AutoConfig, name) if name is not None else None


def _shape(config: PretrainedConfig | None, data: DataArguments) -> pixels.Shape:
    digits = data.dataset_name == pictures.DIGITS
    size = pictures.DIGITS_SIZE if digits else _DEFAULT_SIZE
    channels = 1 if digits or data.grayscale else 3
    if config is not None:
        size, channels = getattr(config, "image_size", None) or 224, getattr(config, "num_channels", 3)
    size = size if data.image_size is None else data.image_size
    if not isinstance(size, int) or size < 2:
        raise UserError(f"--image_size must be 2 or more, not {size}")
    return pixels.Shape(size, channels)


def _prepare(
    parts: Mapping[str, Dataset],
    config: PretrainedConfig | None,
    model: ModelArguments,
    data: DataArguments,
    arguments: TrainingArguments,
) -> _Data:
    train, evaluation = splits.choose(parts, data.validation_split_percentage, arguments)
    image, label = pictures.columns(next(iter(parts.values())), data.image_column, data.label_column)
    fresh = model.model_name_or_path is None
    if fresh and train is None:
        raise UserError("there are no images to train on; give --model_name_or_path to evaluate a model")
    # Of the whole part, with what is held out: a rare label may be there alone.
    train_values = labels.names_by_value(parts["train"], label) if train is not None else {}
    values = labels.names_by_value(evaluation, label) if evaluation is not None else {}
    known = labels.known_names(config) if config is not None else None
    names = labels.settle(train_values.values() if fresh or arguments.do_train else (), values.values(), known)

    shape = _shape(config, data)
    saved = None if fresh else pixels.saved_normalising(str(model.model_name_or_path), shape)
    if train is not None and (arguments.do_train or saved is None):
        train = splits.at_most(train, data.max_train_samples, arguments)
        train = pixels.decode(train, (image, label), labels.ids_by_value(train_values, names), shape, arguments)
        saved = saved or pixels.normalising(train, shape)
    if evaluation is not None:
        evaluation = splits.at_most(evaluation, data.max_eval_samples, arguments)
        evaluation = pixels.decode(evaluation, (image, label), labels.ids_by_value(values, names), shape, arguments)
    if saved is None:
        raise UserError(f"{model.model_name_or_path} does not say how images are normalised; give images to train on")
    return _Data(train if arguments.do_train else None, evaluation, names, saved)


def _model(arguments: ModelArguments, data: _Data) -> PreTrainedModel:
    shape, configured = data.normalising.shape, labels.configured(data.names)
    if arguments.model_name_or_path is not None:
        # In fp32 whatever the file holds: these are the weights that the optimizer changes.
        options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, **configured}
        model: PreTrainedModel = models.load(
            AutoModelForImageClassification,
            arguments.model_name_or_path,
            problem_type="single_label_classification",
            **options,
        )
        _check_size(model, shape)
        return model
    patch = arguments.patch_size or max(2, shape.size // 8)
    if not 0 < patch <= shape.size:
        raise UserError(f"--patch_size must lie between 1 and the images' {shape.size} pixels")
    options = {"image_size": shape.size, "num_channels": shape.channels, **configured}
    try:
        small = ViTConfig(**_SMALL_VIT, patch_size=patch, **options)
        config = small if arguments.architecture == "vit" else ConvnetConfig(**options)
        if arguments.config_overrides:
            config.update_from_string(arguments.config_overrides)
        return AutoModelForImageClassification.from_config(config)
    except ValueError as error:
        raise UserError(f"--config_overrides: {' '.join(str(error).split())}") from error


def _check_size(model: PreTrainedModel, shape: pixels.Shape) -> None:
    """Whether the model takes images of `shape`, before the data has been worked through in vain."""
    try:
        with torch.no_grad():
            model(pixel_values=torch.zeros(1, shape.channels, shape.size, shape.size))
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--image_size: the model does not take {shape.size} x {shape.size} pixels: {reason}"
        ) from error
