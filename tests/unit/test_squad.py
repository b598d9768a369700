"""Questions: how they are read, cut into windows, answered from logits and scored, in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import questions
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CanineTokenizer, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import qa
from cpudist.training.recipes.questions import squad
from cpudist.training.recipes.questions.spans import Cutter, Search, best_answers
from cpudist.training.recipes.questions.squad import Question

TOKENIZERS = {side: questions.small_tokenizer(side) for side in ("right", "left")}


@pytest.fixture(scope="module", autouse=True)
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingArguments]:
    folder = tmp_path_factory.mktemp("squad")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        datasets.disable_progress_bars()
        yield TrainingArguments(output_dir=str(folder / "out"), use_cpu=True, report_to=[], do_train=True)
        datasets.enable_progress_bars()


def _question(context: str, *answers: str, name: str = "q", text: str = "what is it?") -> Question:
    return Question(name, text, context, answers, tuple(context.index(answer) for answer in answers))


def _row(question: Question) -> dict[str, Any]:
    """As the hub has it."""
    answers = {"text": question.answers, "answer_start": question.starts}
    return {"id": question.id, "question": question.text, "context": question.context, "answers": answers}


# Scores. The expected numbers follow from the text of evaluate-v1.1.py and evaluate-v2.0.py, by hand.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\thome.", "cats home"),
        ("an apple a day, the theory", "apple day theory"),
        ("U.S.", "us"),
        ("1,000-year-old", "1000yearold"),
        ("A.", ""),
        ("“the” café", "“ ” café"),  # only ASCII's punctuation goes; articles go wherever they are words
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert squad.normalise(text) == expected


@pytest.mark.parametrize(
    ("prediction", "truth", "exact", "f1"),
    [
        ("The Normans", "normans!", 1, 1),
        ("in the 10th century", "10th century", 0, 0.8),  # 2 of 3 words right, 2 of 2 found
        ("10th and 11th centuries", "the 10th century", 0, 1 / 3),  # 1 of 4, 1 of 2
        ("new new york", "new york", 0, 0.8),  # a word counts as often as both have it
        ("paris", "london", 0, 0),
    ],
)
def test_scores_of_one_answer(prediction: str, truth: str, exact: float, f1: float) -> None:
    assert squad.exact_match(prediction, truth) == exact
    for version_2 in (False, True):
        assert squad.f1_score(prediction, truth, version_2) == pytest.approx(f1)


def test_f1_where_nothing_is_left() -> None:
    assert squad.f1_score("the", "a", version_2=True) == 1
    assert squad.f1_score("the", "a", version_2=False) == 0
    assert squad.f1_score("", "paris", version_2=True) == squad.f1_score("paris", "", version_2=True) == 0


def test_scores_of_version_1() -> None:
    asked = [
        _question("the red old house", "old house", "red old house", name="a"),
        _question("in May or June", "June", name="b"),
        _question("a b", "a", name="c"),
    ]
    # a: exactly the second truth; b: 1 of 2 words right, all of the truth found; c: equal, yet nothing to overlap.
    predictions = {"a": "Red old house", "b": "or June", "c": "the"}
    assert squad.scores(predictions, asked, version_2=False) == {
        "exact_match": pytest.approx(100 * 2 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3 + 0) / 3),
    }


def test_scores_of_version_2() -> None:
    context = "the red old house of the king"
    asked = [
        _question(context, "red old house", name="a"),
        _question(context, "king", "the king", name="b"),
        _question(context, "the", name="c"),  # nothing is left of it: no answer is right, but it counts as answerable
        _question(context, name="d"),
        _question(context, name="e"),
    ]
    predictions = {"a": "old house", "b": "", "c": "", "d": "", "e": "king"}
    assert squad.scores(predictions, asked, version_2=True) == {
        "exact_match": pytest.approx(40),
        "f1": pytest.approx((80 + 0 + 100 + 100 + 0) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(60),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }
    assert "NoAns_f1" not in squad.scores(predictions, asked[:3], version_2=True)


# Reading.


def test_nested_and_flat_files_are_the_same(tmp_path: Path) -> None:
    content = questions.data()
    nested = squad.read(questions.write(tmp_path, content))
    assert len(nested) == 36
    assert (nested[0].id, nested[0].text, nested[0].answers) == ("alba-0", "Where does Alba live?", ("Turin",))
    assert nested[2].answers == ()
    for question in nested:
        for answer, start in zip(question.answers, question.starts, strict=True):
            assert question.context[start:].startswith(answer)

    rows = [_row(question) for question in nested]
    assert squad.read(questions.write(tmp_path, rows)) == nested
    assert squad.read(questions.write(tmp_path, {"data": rows})) == nested


def test_answers_may_be_blank_or_left_out(tmp_path: Path) -> None:
    row = {"id": 7, "question": "who?", "context": "some text", "answers": {"text": [""], "answer_start": [-1]}}
    assert squad.read(questions.write(tmp_path, [row]))[0] == Question("7", "who?", "some text", (), ())
    del row["answers"]
    assert squad.read(questions.write(tmp_path, [{**row, "is_impossible": True}]))[0].answers == ()
    with pytest.raises(UserError, match=r'question 1 \(7\) has no "answers"'):
        squad.read(questions.write(tmp_path, [row]))


_ROW = {"id": "x1", "question": "who?", "context": "some text", "answers": [{"text": "text", "answer_start": 5}]}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"questions": []}, 'no list "data"'),
        ("text", 'no list "data"'),
        ({"data": []}, "no questions"),
        ([1], 'no "id"'),
        ([{**_ROW, "context": None}], r'\(x1\) has no "context"'),
        ([{**_ROW, "answers": "text"}], r'\(x1\) has no "answers"'),
        ([{**_ROW, "answers": [{"text": "text"}]}], r"\(x1\): its answers are not"),
        ([{**_ROW, "answers": {"text": ["text"], "answer_start": []}}], r"\(x1\): its answers are not"),
        ([{**_ROW, "answers": [{"text": "text", "answer_start": 4}]}], r"\(x1\): the answer 'text' is not at"),
        ([{**_ROW, "answers": [{"text": "text", "answer_start": -4}]}], r"\(x1\): the answer 'text' is not at"),
        ([_ROW, _ROW], "2 questions have the id x1"),
        ({"data": [{"paragraphs": {}}]}, 'article 1 has no "paragraphs"'),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, 'article 1, a paragraph has no "context"'),
    ],
)
def test_wrong_questions_are_user_errors(tmp_path: Path, content: Any, part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        squad.read(questions.write(tmp_path, content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "model_name_or_path"),
        (["--model_name_or_path", "m", "--do_train"], "--do_train needs --train_file"),
        (["--model_name_or_path", "m", "--do_eval"], "--do_eval needs --validation_file"),
        (["--model_name_or_path", "m", "--do_train", "--train_file", "missing.json"], "missing.json: No such file"),
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
    ],
)
def test_wrong_options_are_user_errors(tmp_path: Path, words: list[str], part: str) -> None:
    file = questions.write(tmp_path)
    with pytest.raises(UserError, match=part) as caught:
        qa.main(["--output_dir", str(tmp_path), "--use_cpu", *(file if word == "FILE" else word for word in words)])
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_does_not_tell_positions_is_a_user_error(tmp_path: Path) -> None:
    CanineTokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "canine"}))
    words = ["--do_train", "--train_file", questions.write(tmp_path), "--model_name_or_path", str(tmp_path)]
    with pytest.raises(UserError, match="not a fast one"):
        qa.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", *words])


def test_a_data_set_with_splits(tmp_path: Path, arguments: TrainingArguments) -> None:
    asked = squad.read(questions.write(tmp_path))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(_row(question)) + "\n" for question in asked[:24]))
    arguments.do_eval = True
    train, held_out = qa._questions(qa.DataArguments(dataset_name=str(folder)), arguments)
    assert (len(train), len(held_out)) == (21, 3)
    (folder / "validation.jsonl").write_text("".join(json.dumps(_row(question)) + "\n" for question in asked[24:]))
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


# Windows and answers.


@pytest.mark.parametrize("side", ["right", "left"])
def test_windows_and_their_labels(side: str, arguments: TrainingArguments) -> None:
    """Decoding the labelled tokens gives the answer; a window without all of it is labelled with [CLS]."""
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
    asked = [
        _question(" ".join(words), "wbd wbe", name="a"),
        _question("wab wac", name="b"),
        _question("x y", "y", name="c"),
    ]
    tokenizer = TOKENIZERS[side]
    windows = Cutter(tokenizer, 48, 12).cut(asked, True, arguments)
    assert {len(ids) for ids in windows["input_ids"]} == {48}
    assert windows["question"][-2:] == [1, 2]
    assert set(windows["question"][:-2]) == {0}
    found = []
    for window in windows:
        assert tokenizer.decode(window["input_ids"][window["cls"]]) == "[CLS]"
        if window["start_positions"] != window["cls"]:
            labelled = window["input_ids"][window["start_positions"] : window["end_positions"] + 1]
            found.append((window["question"], tokenizer.decode(labelled)))
    assert set(found) == {(0, "wbd wbe"), (2, "y")}
    assert 0 < len([entry for entry in found if entry[0] == 0]) < windows["question"].count(0)


def test_windows_to_train_on_are_not_padded_and_cached(arguments: TrainingArguments) -> None:
    asked = [_question("some text", "text"), _question("a little more of it", "more", name="r")]
    right, left = (Cutter(TOKENIZERS[side], 48, 12) for side in ("right", "left"))
    windows = right.cut(asked, False, arguments)
    assert len({len(ids) for ids in windows["input_ids"]}) == 2
    assert right.cut(asked, False, arguments).cache_files == windows.cache_files
    assert right.cut(asked[:1], False, arguments).cache_files != windows.cache_files
    assert Cutter(TOKENIZERS["right"], 48, 11).cut(asked, False, arguments).cache_files != windows.cache_files
    # Padding on the left moves what was labelled, so it cannot be left to the batches.
    assert {len(ids) for ids in left.cut(asked, False, arguments)["input_ids"]} == {48}


def test_a_question_that_leaves_no_room(arguments: TrainingArguments) -> None:
    asked = [_question("some text", "text"), _question("some text", name="long", text="why? " * 30)]
    with pytest.raises(UserError, match="question long has 90 tokens"):
        Cutter(TOKENIZERS["right"], 48, 12).cut(asked, True, arguments)


_WORDS = st.lists(st.text("abcxyz0189", min_size=1, max_size=6), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_logits_at_the_labels_give_the_answers(data: st.DataObject) -> None:
    """For any span that the overlap of two windows can hold: context, window, labels, logits, answer."""
    tokenizer = TOKENIZERS[data.draw(st.sampled_from(["right", "left"]))]
    arguments = TrainingArguments(output_dir="unused", use_cpu=True, report_to=[])
    stride = 20
    asked = []
    for number in range(data.draw(st.integers(1, 4))):
        words = data.draw(_WORDS)
        blanks = data.draw(st.lists(st.sampled_from([" ", "  ", "\n", ", "]), min_size=len(words), max_size=len(words)))
        context = "".join(blank + word for blank, word in zip(blanks, words, strict=True))
        ends = np.cumsum([len(blank) + len(word) for blank, word in zip(blanks, words, strict=True)]).tolist()
        first = data.draw(st.integers(0, len(words) - 1))
        last = min(first + data.draw(st.integers(0, 1)), len(words) - 1)
        start = ends[first] - len(words[first])
        answer = context[start : ends[last]]
        answers = data.draw(st.sampled_from([((answer,), (start,)), ((), ())]))
        asked.append(Question(str(number), "what?", context, *answers))

    windows = Cutter(tokenizer, 20 + stride + data.draw(st.integers(0, 40)), stride).cut(asked, True, arguments)
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    shape = (len(windows), len(windows[0]["input_ids"]))
    start_logits, end_logits = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    rows = np.arange(len(windows))
    start_logits[rows, windows["start_positions"]] += 100
    end_logits[rows, windows["end_positions"]] += 100
    # Any other window labels [CLS], so none of them finds an answer that is as good.
    found = best_answers(asked, windows, start_logits, end_logits, Search(null_threshold=0.0))
    assert found == {question.id: "".join(question.answers) for question in asked}


def test_what_an_answer_may_be(arguments: TrainingArguments) -> None:
    """Not backwards, not too long, not outside the context, among the best starts and ends, better than none."""
    asked = [_question("aa bb cc dd", text="xx?")]
    windows = Cutter(TOKENIZERS["right"], 48, 12).cut(asked, True, arguments)
    # The tokens of the words; each word may be more than one.
    starts, ends = {}, {}
    for i, (start, end) in enumerate(zip(windows[0]["char_start"], windows[0]["char_end"], strict=True)):
        if start >= 0:
            starts.setdefault(asked[0].context[start], i)
            ends[asked[0].context[end - 1]] = i

    def answer(start: dict[int, float], end: dict[int, float], **options: Any) -> str:
        start_logits, end_logits = np.zeros((1, 48), np.float32), np.zeros((1, 48), np.float32)
        for logits, values in ((start_logits, start), (end_logits, end)):
            for position, value in values.items():
                logits[0, position] = value
        return best_answers(asked, windows, start_logits, end_logits, Search(**options))["q"]

    assert answer({starts["b"]: 9}, {ends["c"]: 9}) == "bb cc"
    backwards = {starts["c"]: 9, starts["a"]: 5}, {ends["a"]: 9, ends["d"]: 5}
    assert answer(*backwards, n_best=2) == "cc dd"  # 9 + 5, as good as "aa" and before it
    longest = ends["d"] - starts["a"]
    assert answer({starts["a"]: 9}, {ends["d"]: 9}, max_tokens=longest, n_best=1) == ""
    assert answer({starts["a"]: 9}, {ends["d"]: 9}, max_tokens=longest + 1, n_best=1) == "aa bb cc dd"
    assert answer({1: 9, starts["b"]: 8}, {1: 9, ends["b"]: 8}) == "bb"  # 1 is of the question
    assert answer({1: 9, starts["b"]: 8}, {1: 9, ends["b"]: 8}, n_best=1) == ""
    # [CLS] has 10, the span 8: no answer wins by more than 1.5, but not by more than 2.
    none = {0: 5, starts["d"]: 4}, {0: 5, ends["d"]: 4}
    assert answer(*none) == answer(*none, null_threshold=2.0) == "dd"
    assert answer(*none, null_threshold=1.5) == ""
