"""A causal language model trained by Trainer, as one writes it without cpudist: what `cpudist bench jobs` runs.

    trainer_script.py FOLDER RESULT.json [FLAGS OF TrainingArguments]

FOLDER holds the model's configuration, the tokenizer and text.txt. Rank 0 writes what Trainer says to RESULT.json.
"""

import json
import sys
from pathlib import Path

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


def main(folder: Path, result: Path, flags: list[str]) -> None:
    """Train on the text of `folder`."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    set_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer((folder / "text.txt").read_text(encoding="utf-8"), verbose=False)["input_ids"]
    length = tokenizer.model_max_length
    trainer = Trainer(
        model=AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)),
        args=arguments,
        train_dataset=[{"input_ids": tokens[at : at + length]} for at in range(0, len(tokens) - length + 1, length)],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    metrics = trainer.train().metrics
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        result.write_text(json.dumps({**metrics, "losses": losses, "ranks": arguments.world_size}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
