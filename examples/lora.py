"""Fine-tune adapters (LoRA) of a pretrained model with peft and Trainer. The script knows nothing of cpudist.

    pip install peft
    python examples/stdlib_data.py runs/data
    mpirun -n 2 cpudist-train examples/lora.py runs/data MODEL --output_dir runs/lora \
        --ddp_backend ccl --bf16 --learning_rate 2e-3 --num_train_epochs 4

MODEL is a name on the hub or a folder, such as a BERT. The base model is frozen: ranks exchange the adapters' gradients
alone, and the optimizer keeps a state of the adapters alone.
"""

import sys
from typing import Any

from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)


def main(folder: str, name: str, flags: list[str]) -> None:
    """Train on train.csv of `folder`, from the model `name`, and evaluate on validation.csv."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    files = {"train": f"{folder}/train.csv", "validation": f"{folder}/validation.csv"}
    tables = load_dataset("csv", data_files=files)
    labels = sorted(set(tables["train"]["label"]))
    tokenizer = AutoTokenizer.from_pretrained(name)

    def tokenize(row: dict[str, str]) -> dict[str, Any]:
        return {**tokenizer(row["text"], truncation=True, max_length=64), "labels": labels.index(row["label"])}

    samples = tables.map(tokenize, remove_columns=["text", "label"])
    base = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(labels))
    adapters = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"])
    trainer = Trainer(
        model=get_peft_model(base, adapters),
        args=arguments,
        train_dataset=samples["train"],
        eval_dataset=samples["validation"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        trained, all_of_them = trainer.model.get_nb_trainable_parameters()
        print(f"{trained} of {all_of_them} parameters were trained; accuracy {metrics['eval_accuracy']:.2f}")


def accuracy(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the share of right answers."""
    return {"accuracy": float((evaluated.predictions.argmax(1) == evaluated.label_ids).mean())}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
