"""The recipes on xla: results are those of ccl, and programs are compiled for a few shapes only."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from jobs import mpirun, run, train

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

BOUND = 400.0
_EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "stdlib_data.py"
_LEARN = ["--do_train", "--do_eval", "--max_steps", "8", "--learning_rate", "2e-3", "--logging_steps", "1"]
_LEARN += ["--disable_tqdm", "true", "--save_strategy", "no", "--max_eval_samples", "40"]
# Of a length, there is a graph for batches with padding and one for those without, since transformers asks; 4 lengths.
_LATE = {"classify": 8, "qa": 2, "mlm": 0, "images": 0}


def _words(recipe: str, data: Path) -> list[str]:
    pretrained = ["--model_name_or_path", str(data / "model")]
    small = "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=64"
    tables = ["--train_file", str(data / "train.csv"), "--validation_file", str(data / "validation.csv")]
    questions = ["--train_file", str(data / "questions.json"), "--max_seq_length", "64", "--doc_stride", "16"]
    text = ["--train_file", str(_EXAMPLE), "--vocab_size", "300", "--block_size", "32"]
    return {
        "classify": [*pretrained, *tables, "--max_seq_length", "48"],
        # Its logits at padding count, so lengths must be the same.
        "qa": [*pretrained, *questions, "--pad_to_max_length"],
        "mlm": [*text, "--config_overrides", small],
        "images": ["--dataset_name", "digits", "--config_overrides", "width=8"],
    }[recipe]


def _run(recipe: str, backend: str, ranks: int, data: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metrics of the last evaluation, and the run record."""
    output = folder / backend
    words = [*_words(recipe, data), *_LEARN, "--per_device_train_batch_size", str(8 // ranks)]
    command = train("--backend", backend, recipe, "--output_dir", str(output), *words)
    cache = {"HF_DATASETS_CACHE": str(folder / "datasets")}
    result = run(mpirun(ranks, *command) if ranks > 1 else command, timeout=BOUND, env=cache)
    assert result.returncode == 0, result.output
    return json.loads((output / "eval_results.json").read_text()), json.loads((output / "cpudist.json").read_text())


@pytest.mark.parametrize(
    ("recipe", "ranks"),
    [
        ("classify", 2),
        pytest.param("classify", 1, marks=pytest.mark.long),
        *(pytest.param(name, n, marks=pytest.mark.long) for name in ("qa", "mlm", "images") for n in (1, 2)),
    ],
)
def test_recipes_come_to_the_same_as_on_ccl(recipe: str, ranks: int, stdlib_data: Path, tmp_path: Path) -> None:
    (wanted, ccl), (found, xla) = (_run(recipe, backend, ranks, stdlib_data, tmp_path) for backend in ("ccl", "xla"))
    measured = [name for name in wanted if not name.endswith(("runtime", "per_second"))]
    assert {"eval_loss"} < set(measured)
    assert {name: found[name] for name in measured} == pytest.approx(
        {name: wanted[name] for name in measured}, rel=1e-4
    )
    assert xla["loss"] == pytest.approx(ccl["loss"], abs=1e-3)  # as logged, with few digits
    assert xla["details"]["steps_that_compiled_after_warm_up"] <= _LATE[recipe], xla["details"]
