"""The recipe qa: its options and data in one process; from questions to answers and scores on real ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import questions
from jobs import Result, mpirun, run, train
from pretrained import minilm
from transformers import CanineTokenizer, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import qa, squad

BOUND = 600.0

# 55 windows of 36 questions: a multiple of no number of ranks or batches here.
_SHORT_WINDOWS = ["--max_seq_length", "64", "--doc_stride", "16", "--per_device_eval_batch_size", "4"]


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "model_name_or_path"),
        (["--model_name_or_path", "m", "--do_train"], "--do_train needs data; give --train_file"),
        (["--model_name_or_path", "m", "--do_eval"], "--do_eval needs data; give --validation_file"),
        (
            ["--model_name_or_path", "m", "--do_train", "--train_file", "missing.json"],
            "missing.json names no text file",
        ),
        (["--model_name_or_path", "m", "--do_train", "--train_file", __file__], "not JSON"),
        (["--model_name_or_path", "m", "--do_train", "--dataset_name", "d", "--train_file", "f"], "exclude each other"),
        (["--model_name_or_path", "m", "--do_train", "--dataset_name", "/missing"], "/missing"),
        (["--model_name_or_path", "m", "--do_train", "--train_file", "f", "--doc_stride", "384"], "--doc_stride must"),
        (["--model_name_or_path", "m", "--do_train", "--train_file", "f", "--n_best_size", "0"], "--n_best_size must"),
        (["--model_name_or_path", "/missing", "--do_train", "--train_file", "FILE"], "cannot load /missing"),
        (
            ["--model_name_or_path", "m", "--do_eval", "--train_file", "FILE", "--validation_split_percentage", "0"],
            "--validation_split_percentage must",
        ),
        (
            ["--model_name_or_path", "m", "--do_train", "--train_file", "FILE", "--version_2_with_negative", "false"],
            "alba-2 has no answer",
        ),
        (
            ["--model_name_or_path", "m", "--do_train", "--train_file", "MISPLACED"],
            r"\(bruno-0\): the answer 'Genoa' is not at answer_start",
        ),
    ],
)
def test_wrong_options_are_user_errors(tmp_path: Path, words: list[str], part: str) -> None:
    content = questions.data()
    content["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] += 1
    (tmp_path / "misplaced.json").write_text(json.dumps(content))
    files = {"FILE": questions.write(tmp_path), "MISPLACED": str(tmp_path / "misplaced.json")}
    with pytest.raises(UserError, match=part) as caught:
        qa.main(["--output_dir", str(tmp_path), "--use_cpu", *(files.get(word, word) for word in words)])
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_does_not_tell_positions_is_a_user_error(tmp_path: Path) -> None:
    CanineTokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "canine"}))
    words = ["--do_train", "--train_file", questions.write(tmp_path), "--model_name_or_path", str(tmp_path)]
    with pytest.raises(UserError, match="give a fast one by --tokenizer_name"):
        qa.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", *words])


def test_a_data_set_with_splits(tmp_path: Path, arguments: TrainingArguments) -> None:
    asked = squad.read([questions.write(tmp_path)])
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(questions.row(question)) + "\n" for question in asked[:24]))
    arguments.do_eval = True
    train, held_out = qa._questions(qa.DataArguments(dataset_name=str(folder)), arguments)
    assert (len(train), len(held_out)) == (21, 3)
    (folder / "validation.jsonl").write_text(
        "".join(json.dumps(questions.row(question)) + "\n" for question in asked[24:])
    )
    assert qa._questions(qa.DataArguments(dataset_name=str(folder)), arguments) == (asked[:24], asked[24:])
    few = qa.DataArguments(dataset_name=str(folder), max_train_samples=5, max_eval_samples=4)
    assert qa._questions(few, arguments) == (asked[:5], asked[24:28])


def test_no_context_is_in_both_parts(tmp_path: Path, arguments: TrainingArguments) -> None:
    data = qa.DataArguments(train_file=questions.write(tmp_path), validation_split_percentage=25)
    arguments.do_eval = True
    train, held_out = qa._questions(data, arguments)
    assert (len(train), len(held_out)) == (27, 9)  # 3 of 12 contexts
    assert not {question.context for question in train} & {question.context for question in held_out}
    assert qa._questions(data, arguments) == (train, held_out)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """An untrained model and questions that it can learn."""
    folder = tmp_path_factory.mktemp("small")
    return questions.save_small_model(folder / "model"), questions.write(folder)


@pytest.fixture(scope="module")
def trained(small: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a training of the small model that stops before it knows everything."""
    output = tmp_path_factory.mktemp("trained") / "out"
    result = _train(small, output, "--max_steps", "90", "--do_eval")
    assert result.returncode == 0, result.output
    return output


def _qa(ranks: int, model: str, output: Path, *words: str, backend: str = "gloo") -> Result:
    words = ("--model_name_or_path", model, "--output_dir", str(output), "--disable_tqdm", "true", *words)
    return run(mpirun(ranks, *train("--backend", backend, "qa", *words)), timeout=BOUND)


def _train(small: tuple[str, str], output: Path, *words: str) -> Result:
    model, path = small
    best = ["--eval_strategy", "steps", "--load_best_model_at_end", "--metric_for_best_model", "f1"]
    often = ["--eval_steps", "30", "--save_steps", "30", "--logging_steps", "10"]
    learn = ["--do_train", "--learning_rate", "2e-3", "--lr_scheduler_type", "constant"]
    return _qa(
        2,
        model,
        output,
        "--train_file",
        path,
        "--validation_file",
        path,
        *_SHORT_WINDOWS,
        *best,
        *often,
        *learn,
        *words,
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.job
@pytest.mark.versions
def test_learns_questions_by_heart(tmp_path: Path) -> None:
    """A pretrained model learns 20 questions that it cannot know before."""
    file = questions.VILLAGE
    data = ["--train_file", file, "--validation_file", file, "--max_seq_length", "96", "--doc_stride", "32"]
    steps = ["--do_train", "--max_steps", "24", "--learning_rate", "6e-4", "--save_strategy", "no"]
    result = _qa(2, minilm(), tmp_path / "out", *data, *steps, "--do_eval", "--eval_on_start", backend="ccl")
    assert result.returncode == 0, result.output

    record = _json(tmp_path / "out" / "cpudist.json")
    assert (record["backend"], record["steps"], record["exit"]) == ("ccl", 24, "completed")
    before, after = _evaluations(tmp_path / "out")[0], record["results"]["eval"]
    # A model that answers nothing gets an F1 of 40, all of it for the 8 questions without an answer.
    assert (after["eval_HasAns_total"], after["eval_NoAns_total"]) == (12, 8)
    assert before["eval_HasAns_f1"] < 25
    assert after["eval_HasAns_f1"] > 50
    assert after["eval_f1"] > 60
    assert after["eval_loss"] < before["eval_loss"] / 3

    answers = _json(tmp_path / "out" / "eval_predictions.json")
    assert list(answers) == [question.id for question in squad.read([file])]
    assert record["results"]["sample"] in result.stdout
    assert result.stdout.count("***** eval metrics *****") == 1, "rank 0 alone prints"


@pytest.mark.job
def test_the_best_of_a_training_is_kept(trained: Path) -> None:
    results = _json(trained / "eval_results.json")
    during = _evaluations(trained)
    assert [entry["step"] for entry in during[:3]] == [30, 60, 90]
    assert results["eval_f1"] == max(entry["eval_f1"] for entry in during) > during[0]["eval_f1"]
    assert _json(trained / "trainer_state.json")["best_metric"] == results["eval_f1"]
    for name in ("model.safetensors", "tokenizer.json", "loss.png", "train_results.json"):
        assert (trained / name).exists(), name


@pytest.mark.job
def test_scores_are_the_same_on_any_number_of_ranks(small: tuple[str, str], trained: Path, tmp_path: Path) -> None:
    """The two ranks that have trained it, three ranks, and this process alone."""
    words = ["--validation_file", small[1], "--do_eval", *_SHORT_WINDOWS]
    result = _qa(3, str(trained), tmp_path / "three", *words)
    assert result.returncode == 0, result.output
    qa.main(["--model_name_or_path", str(trained), "--output_dir", str(tmp_path / "one"), "--use_cpu", *words])
    folders = (trained, tmp_path / "one", tmp_path / "three")
    results = [_json(folder / "eval_results.json") for folder in folders]
    scores = [
        {name: value for name, value in one.items() if "exact" in name or "f1" in name or "total" in name}
        for one in results
    ]
    assert 0 < scores[0]["eval_HasAns_f1"] < 100
    assert scores == [scores[0]] * 3
    assert [one["eval_loss"] for one in results] == pytest.approx([results[0]["eval_loss"]] * 3, rel=1e-5)
    answers = [(folder / "eval_predictions.json").read_text() for folder in folders]
    assert answers == [answers[0]] * 3


@pytest.mark.job
def test_resumes_where_it_stopped(small: tuple[str, str], trained: Path, tmp_path: Path) -> None:
    output = shutil.copytree(trained, tmp_path / "out")
    result = _train(small, output, "--max_steps", "120", "--resume_from_checkpoint", "last")
    assert result.returncode == 0, result.output
    history = _json(output / "checkpoint-120" / "trainer_state.json")["log_history"]
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    assert sorted(losses) == sorted([1, 91, *range(10, 121, 10)]), "the first step of each run is logged"
    assert losses[91] < losses[10] / 2
    assert _json(output / "cpudist.json")["steps"] == 30


def _evaluations(output: Path) -> list[dict[str, float]]:
    return [entry for entry in _json(output / "trainer_state.json")["log_history"] if "eval_f1" in entry]
