r"""Train an image classifier, a small new ViT or a pretrained model, on scikit-learn's digits or folders of images.

    mpirun -n 2 cpudist-train examples/images.py --output_dir runs/images --num_train_epochs 20 --learning_rate 2e-3
    mpirun -n 2 cpudist-train examples/images.py --data_dir flowers --model_name google/vit-base-patch16-224-in21k \
        --output_dir runs/flowers --per_device_train_batch_size 16 --bf16

--data_dir has a folder for each class, or folders train and validation of such folders. A fifth of images that are not
divided is held out to evaluate on. The script knows nothing of cpudist. pip install pillow scikit-learn
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, load_dataset
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTImageProcessor,
    default_data_collator,
    set_seed,
)


@dataclass
class Arguments:
    """Which images, and which model."""

    data_dir: str | None = field(default=None, metadata={"help": "Folder of images (default: scikit-learn's digits)."})
    model_name: str | None = field(default=None, metadata={"help": "Pretrained model: a folder or a hub name."})
    image_size: int = field(default=16, metadata={"help": "Pixels a side for a new model, in 4 x 4 patches."})
    hidden_size: int = field(default=64, metadata={"help": "Width of a new model, of 4 layers."})


def main() -> None:
    parser = HfArgumentParser((Arguments, TrainingArguments))
    parser.set_defaults(ddp_find_unused_parameters=False)  # there are none, and looking for them costs every step
    parser.set_defaults(remove_unused_columns=False)  # `prepare` needs the column of images
    arguments, training = parser.parse_args_into_dataclasses()
    with training.main_process_first(local=True):  # the other ranks of a host read what the first one has cached
        images = load(arguments.data_dir)
    names = images["train"].features["label"].names
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}

    set_seed(training.seed)
    if arguments.model_name:
        new_head = {"ignore_mismatched_sizes": True, "dtype": torch.float32}
        model = AutoModelForImageClassification.from_pretrained(arguments.model_name, **new_head, **labels)
        processor = AutoImageProcessor.from_pretrained(arguments.model_name)
    else:
        size, width = arguments.image_size, arguments.hidden_size
        config = ViTConfig(
            image_size=size, patch_size=size // 4, hidden_size=width, intermediate_size=2 * width, **labels
        )
        config.num_hidden_layers = config.num_attention_heads = 4
        model = AutoModelForImageClassification.from_config(config)
        processor = ViTImageProcessor(size={"height": size, "width": size})

    def prepare(batch: dict[str, list]) -> dict[str, list]:
        pixels = processor([image.convert("RGB") for image in batch["image"]], return_tensors="pt")
        return {**pixels, "labels": batch["label"]}

    images = images.with_transform(prepare)  # when a batch is loaded
    trainer = Trainer(
        model,
        training,
        default_data_collator,
        train_dataset=images["train"],
        eval_dataset=images["validation"],
        processing_class=processor,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=1),  # all that ranks gather
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    trainer.save_state()


def load(folder: str | None) -> DatasetDict:
    """Return images and their labels, to train on and to evaluate on."""
    if folder is None:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        features = Features({"image": Image(), "label": ClassLabel(names=[str(digit) for digit in range(10)])})
        columns = {"image": (pixels.reshape(-1, 8, 8) * 15).astype(np.uint8), "label": labels}
        images = DatasetDict(train=Dataset.from_dict({**columns, "image": list(columns["image"])}, features))
    elif Path(folder).is_dir():
        images = load_dataset("imagefolder", data_dir=folder)
    else:
        sys.exit(f"there is no folder {folder}")
    if "validation" not in images:
        train, held_out = images["train"].train_test_split(0.2, seed=0).values()
        images = DatasetDict(train=train, validation=held_out)
    return images


def accuracy(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the share of images that are classified rightly, with each counted once on any number of ranks."""
    return {"accuracy": float((evaluated.predictions == evaluated.label_ids).mean())}


if __name__ == "__main__":
    main()
