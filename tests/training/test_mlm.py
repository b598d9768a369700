"""The recipe mlm, from text files to a model and its metrics, on real ranks."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from jobs import Result, mpirun, run, train

BOUND = 150.0

_LIBRARY = Path(sysconfig.get_path("stdlib"))
_HELD_OUT = _LIBRARY / "bisect.py"
_EVALUATION = ["--do_eval", "--max_eval_samples", "17"]
_TINY = ["--config_overrides", "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=64"]


def _mlm(ranks: int, backend: str, output: Path, *words: str) -> Result:
    words = ("mlm", "--output_dir", str(output), "--max_seq_length", "32", "--disable_tqdm", "true", *words)
    result = run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)
    assert result.returncode == 0, result.output
    return result


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A model trained for a moment on two ranks, on real text: its folder, and how the job went."""
    folder = tmp_path_factory.mktemp("mlm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(folder / "datasets"))
        files = [str(_LIBRARY / name) for name in ("textwrap.py", "shlex.py", "heapq.py")]
        words = ["--train_file", *files, "--vocab_size", "400", *_TINY, "--do_train", "--max_steps", "40"]
        words += ["--validation_file", str(_HELD_OUT), "--eval_on_start", *_EVALUATION]
        words += ["--learning_rate", "1e-2", "--per_device_train_batch_size", "8", "--logging_steps", "5"]
        return folder / "out", _mlm(2, "ccl", folder / "out", *words)


def test_learns_and_leaves_everything_behind(trained: tuple[Path, Result]) -> None:
    output, result = trained
    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    # A loss that Trainer has multiplied by the number of ranks would start at twice this.
    assert record["loss"]["first"] == pytest.approx(5.99, abs=0.5), "untrained, about log(400)"
    assert record["loss"]["last"] < record["loss"]["first"] - 0.5
    results = record["results"]
    assert results["perplexity"]["last"] < 0.6 * results["perplexity"]["first"]
    assert 0.03 < results["eval"]["eval_accuracy"] < 1
    assert "[MASK]" in results["sample"]
    assert f"a sample of what the model takes masked words for:\n{results['sample']}\n" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_pretrained_model_evaluates_alike_on_any_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: tuple[Path, Result], ranks: int
) -> None:
    """Alike, too, whether the text comes from a file or from a data set."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    data, output = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    shutil.copy(_HELD_OUT, data / "validation.txt")
    words = ["--model_name_or_path", str(trained[0]), "--dataset_name", str(data), "--per_device_eval_batch_size", "4"]
    _mlm(ranks, "gloo", output, *words, *_EVALUATION)
    expected, found = (_json(folder / "eval_results.json") for folder in (trained[0], output))
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6)
    assert found["eval_accuracy"] == pytest.approx(expected["eval_accuracy"], rel=1e-12)
