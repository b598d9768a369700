"""Trains a causal language model with Trainer, as a user writes it without cpudist; `cpudist bench jobs` runs it.

    trainer_script.py FOLDER RESULT.json [FLAGS OF TrainingArguments]

FOLDER holds the model's configuration and text.txt, whose bytes are the tokens. Rank 0 writes what Trainer says to
RESULT.json.
"""

import json
import sys
from pathlib import Path

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


def main(folder: Path, result: Path, flags: list[str]) -> None:
    """Train on the text of `folder`."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    set_seed(arguments.seed)
    config = AutoConfig.from_pretrained(folder)
    tokens, length = list((folder / "text.txt").read_bytes()), config.n_positions
    samples = [tokens[at : at + length] for at in range(0, len(tokens) - length + 1, length)]
    trainer = Trainer(
        model=AutoModelForCausalLM.from_config(config),
        args=arguments,
        train_dataset=[{"input_ids": sample, "labels": sample} for sample in samples],
        data_collator=default_data_collator,
    )
    metrics = trainer.train().metrics
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        result.write_text(json.dumps({**metrics, "losses": losses, "ranks": arguments.world_size}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
