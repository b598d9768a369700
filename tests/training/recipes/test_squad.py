"""Questions: how they are read and scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import questions

from cpudist.errors import UserError
from cpudist.training.recipes import squad
from cpudist.training.recipes.squad import Question


def _question(context: str, *answers: str, name: str = "q", text: str = "what is it?") -> Question:
    return Question(name, text, context, answers, tuple(context.index(answer) for answer in answers))


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
def test_normalize_answer(text: str, expected: str) -> None:
    assert squad.normalize_answer(text) == expected


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


def test_nested_and_flat_files_are_the_same(tmp_path: Path) -> None:
    content = questions.data()
    nested = squad.read([questions.write(tmp_path, content)])
    assert len(nested) == 36
    assert (nested[0].id, nested[0].text, nested[0].answers) == ("alba-0", "Where does Alba live?", ("Turin",))
    assert nested[2].answers == ()
    for question in nested:
        for answer, start in zip(question.answers, question.starts, strict=True):
            assert question.context[start:].startswith(answer)

    rows = [questions.row(question) for question in nested]
    assert squad.read([questions.write(tmp_path, rows)]) == nested
    assert squad.read([questions.write(tmp_path, {"data": rows})]) == nested

    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, part in zip(paths, (rows[:9], rows[9:]), strict=True):
        Path(path).write_text(json.dumps(part))
    assert squad.read(paths) == nested
    with pytest.raises(UserError, match="2 questions have the id alba-0"):
        squad.read([*paths, paths[0]])


def test_answers_may_be_blank_or_left_out(tmp_path: Path) -> None:
    row = {"id": 7, "question": "who?", "context": "some text", "answers": {"text": [""], "answer_start": [-1]}}
    assert squad.read([questions.write(tmp_path, [row])])[0] == Question("7", "who?", "some text", (), ())
    del row["answers"]
    assert squad.read([questions.write(tmp_path, [{**row, "is_impossible": True}])])[0].answers == ()
    with pytest.raises(UserError, match=r'question 1 \(7\) has no "answers"'):
        squad.read([questions.write(tmp_path, [row])])


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
        squad.read([questions.write(tmp_path, content)])
    assert "\n" not in str(caught.value)
