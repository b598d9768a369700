"""The example of question answering: SQuAD's scores, and the same ones in one process and on two ranks."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from pretrained import minilm, small_bert
from trainer_examples import EXAMPLES, trained

QUESTIONS = str(Path(__file__).parents[1] / "huggingface" / "village.json")


@pytest.fixture(scope="module")
def example() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "question_answering.py"), run_name="example"))


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
def test_scores_of_squad(
    example: SimpleNamespace, answer: str, truths: list[str], expected: tuple[float, float]
) -> None:
    assert example.score(answer, truths) == pytest.approx(expected)


def test_the_best_span_of_all_windows_is_the_answer(example: SimpleNamespace) -> None:
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
    words = ["--model_name", str(tmp_path / "model"), "--train_file", QUESTIONS, "--eval_file", QUESTIONS]
    words += ["--max_seq_length", "64", "--doc_stride", "16", "--learning_rate", "3e-3", "--logging_steps", "1"]
    words += ["--eval_on_start", "--max_steps"]
    more = ["30", "--per_device_train_batch_size", "4"]
    _, two = trained(tmp_path / "2", 2, "question_answering", *words, *more, options=["--backend", "ccl"])
    _, one = trained(tmp_path / "1", 1, "question_answering", *words, "1", "--per_device_train_batch_size", "8")
    for name in ("loss", "eval_exact_match", "eval_f1"):  # at the start
        assert two[name][0] == pytest.approx(one[name][0], rel=1e-4), name
    assert two["loss"][-1] < two["loss"][0] - 0.5
