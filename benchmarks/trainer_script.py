"""Train a GPT-2 with Trainer, as a user writes it without cpudist: whole_jobs.py starts this script in several ways.

    trainer_script.py RESULT.json [FLAGS OF TrainingArguments]

The tokens are the bytes of Python's own source code. Rank 0 writes what Trainer says to RESULT.json, and the median
time of a step in the second half of the training, when a model is compiled.
"""

import itertools
import json
import statistics
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

TOKENS = 128  # of a sample
BYTES = 1_000_000  # more than is trained on
SIZES = {"vocab_size": 30522, "n_embd": 384, "n_layer": 7, "n_head": 12, "n_positions": TOKENS}  # 24 million parameters


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes when each step ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


def main(result: Path, flags: list[str]) -> None:
    """Train, and write the result."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    set_seed(arguments.seed)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokens = list(b"".join(file.read_bytes() for file in files)[:BYTES])
    samples = [tokens[at : at + TOKENS] for at in range(0, len(tokens) - TOKENS + 1, TOKENS)]
    clock = Clock()
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **SIZES)),
        args=arguments,
        train_dataset=[{"input_ids": sample, "labels": sample} for sample in samples],
        data_collator=default_data_collator,
        callbacks=[clock],
    )
    metrics = trainer.train().metrics
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    ends = clock.ends[(len(clock.ends) - 1) // 2 :]
    step = statistics.median(after - before for before, after in itertools.pairwise(ends))
    if trainer.is_world_process_zero():
        said = {**metrics, "losses": losses, "ranks": arguments.world_size, "step_seconds": step}
        result.write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
