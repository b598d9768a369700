"""The example of question answering: SQuAD's scores, and the same ones in one process and on two ranks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from datasets import Dataset
from jobs import mpirun, run, train
from pretrained import minilm, small_bert

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "question_answering.py"
QUESTIONS = Path(__file__).parents[1] / "huggingface" / "village.json"
BOUND = 300.0


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("question_answering", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "truths", "expected"),
    [
        ("The  Lamp!", ["a lamp", "whale oil"], (1.0, 1.0)),
        ("in 1911", ["1911"], (0.0, 2 / 3)),
        ("oil", ["1874", "whale oil from the north"], (0.0, 2 / 5)),
        ("", [""], (1.0, 1.0)),
        ("", ["1911"], (0.0, 0.0)),
        ("1911", [""], (0.0, 0.0)),
    ],
)
def test_scores_are_those_that_squad_defines(
    example: ModuleType, answer: str, truths: list[str], expected: tuple[float, float]
) -> None:
    assert example.score(answer, truths) == pytest.approx(expected)


def test_the_best_span_of_all_windows_is_the_answer(example: ModuleType) -> None:
    """Two windows of a question, and one of a question without an answer; token 0 is [CLS], token 1 the question."""
    context = "ab cd ef"
    questions = Dataset.from_list([{"context": context, "answers": ["cd"]}, {"context": context, "answers": []}])
    chars = [[[0, 0], [0, 0], [0, 2], [3, 5]], [[0, 0], [0, 0], [3, 5], [6, 8]], [[0, 0], [0, 0], [0, 2], [3, 5]]]
    windows = Dataset.from_dict({"number": [0, 0, 1], "chars": chars})
    start = np.array([[0.0, 9, 1, 0], [0, 9, 4, 0], [5, 0, 1, 0]])
    end = np.array([[0.0, 9, 0, 1], [0, 0, 1, 3], [5, 0, 0, 1]])
    assert example.best_answers(questions, windows, (start, end)) == ["cd ef", ""]
    end[1] = [0, 0, 0, -9]  # an answer does not end before it starts
    start[1] = [0, 0, -9, 9]
    assert example.best_answers(questions, windows, (start, end))[0] == "ab cd"


@pytest.mark.job
def test_learns_on_two_ranks_and_scores_as_in_one_process(tmp_path: Path) -> None:
    """A new small BERT, without dropout, learns the answers of a small file."""
    import torch
    from transformers import AutoTokenizer, BertModel

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    BertModel(small_bert(len(tokenizer), width=64, layers=1, heads=2, tokens=64)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = [str(EXAMPLE), "--model_name", str(tmp_path / "model"), "--train_file", str(QUESTIONS)]
    words += ["--eval_file", str(QUESTIONS), "--max_seq_length", "64", "--doc_stride", "16"]
    words += ["--learning_rate", "3e-3", "--logging_steps", "1", "--eval_on_start", "--save_strategy", "no"]
    words += ["--disable_tqdm", "true", "--report_to", "none"]
    # Outside a job, accelerate would take torch_xla where it is installed.
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "USE_TORCH_XLA": "0"}
    more = ["--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "2"), "--max_steps", "30"]
    result = run(mpirun(2, *train("--backend", "ccl", *words, *more)), BOUND, cache)
    assert result.returncode == 0, result.output
    more = ["--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "1"), "--max_steps", "1", "--use_cpu"]
    result = run([sys.executable, *words, *more], BOUND, cache)
    assert result.returncode == 0, result.output

    one, two = (
        json.loads((tmp_path / ranks / "trainer_state.json").read_text())["log_history"] for ranks in ("1", "2")
    )
    for name in ("loss", "eval_exact_match", "eval_f1"):  # at the start
        first, expected = (next(entry[name] for entry in history if name in entry) for history in (two, one))
        assert first == pytest.approx(expected, rel=1e-4), name
    losses = [entry["loss"] for entry in two if "loss" in entry]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.job
def test_a_file_that_holds_no_questions_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "questions.json").write_text("[]")
    words = ["--model_name", "x", "--train_file", "questions.json", "--eval_file", "questions.json"]
    result = run([sys.executable, str(EXAMPLE), *words, "--output_dir", "out", "--use_cpu"], BOUND, cwd=tmp_path)
    assert result.returncode == 1, result.output
    assert result.stderr.startswith("questions.json holds no questions in the form of SQuAD: TypeError"), result.output
    assert result.stderr.count("\n") == 1, result.output
