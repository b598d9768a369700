"""Read questions in the form of SQuAD, and score answers as its official evaluation scripts do.

A question has a context and the answers that people gave, each a piece of the context. In version 2 some questions have
no answer. `scores` computes what evaluate-v1.1.py and evaluate-v2.0.py define, in percent.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cpudist.errors import UserError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question about a context, the answers that people gave, and the characters of the context where they start."""

    id: str
    text: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


def read(paths: Iterable[str]) -> list[Question]:
    """Read the questions of JSON files, nested as SQuAD's own or flat rows, or raise `UserError`."""
    return _with_unique_ids([question for path in paths for question in _read(path)], ", ".join(paths))


def from_rows(rows: Iterable[Mapping[str, Any]], source: str) -> list[Question]:
    """Make questions of rows as SQuAD has them, or raise `UserError`, which names their `source`."""
    return _with_unique_ids(
        [_question(row, f"{source}, question {number}") for number, row in enumerate(rows, 1)], source
    )


def _read(path: str) -> list[Question]:
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a file of questions in SQuAD's form") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise UserError(f"{path} is not JSON: {error}; give a file in SQuAD's form") from error
    entries = content.get("data") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise UserError(f'{path} has no list "data"; give a file in SQuAD\'s form')
    return from_rows(_flat(entries, path), path)


def _with_unique_ids(questions: list[Question], source: str) -> list[Question]:
    if not questions:
        raise UserError(f"there are no questions in {source}; give a file that has some")
    name, count = Counter(question.id for question in questions).most_common(1)[0]
    if count > 1:
        raise UserError(f"{source}: {count} questions have the id {name}; give each an id of its own")
    return questions


def _flat(entries: list[Any], path: str) -> Iterable[Mapping[str, Any]]:
    """Yield one row per question of a nested file (articles with paragraphs) or a flat one."""
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or "paragraphs" not in entry:
            yield entry
            continue
        for paragraph in _get(entry, "paragraphs", list, f"{path}, article {number}"):
            context = _get(paragraph, "context", str, f"{path}, article {number}, a paragraph")
            for question in _get(paragraph, "qas", list, f"{path}, article {number}, a paragraph"):
                yield {**question, "context": context} if isinstance(question, dict) else question


def _question(row: Mapping[str, Any], where: str) -> Question:
    name = str(_get(row, "id", (str, int), where))
    where = f"{where} ({name})"
    context = _get(row, "context", str, where)
    pairs = _answers(row, where)
    for text, start in pairs:
        if start < 0 or not context.startswith(text, start):
            raise UserError(
                f"{where}: the answer {text!r} is not at answer_start {start} of its context; correct or remove it"
            )
    answers, starts = tuple(text for text, _ in pairs), tuple(start for _, start in pairs)
    return Question(name, _get(row, "question", str, where), context, answers, starts)


def _answers(row: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """Return the answers and where they start, without blank ones, which some files have for "no answer"."""
    if row.get("answers") is None and row.get("is_impossible"):
        return []
    answers = _get(row, "answers", (list, dict), where)
    try:
        # SQuAD's own files have a list of pairs, flat rows and the hub a pair of lists.
        if isinstance(answers, dict):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
        return [(text, int(start)) for text, start in pairs if text.strip()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f'{where}: its answers are not of the form {{"text", "answer_start"}}; correct or remove them'
        ) from error


def _get(entry: Any, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    if not isinstance(value, kind):
        raise UserError(f'{where} has no "{key}" as SQuAD defines it; correct or remove it')
    return value


def scores(predictions: Mapping[str, str], questions: Sequence[Question], version_2: bool) -> dict[str, float]:
    """Score an answer for the id of every question: "exact_match" and "f1" in percent.

    For version 2, where questions may have no answer, also among questions with an answer and without.
    """
    pairs = [_score(predictions[question.id], question, version_2) for question in questions]
    results = {"exact_match": _percent(exact for exact, _ in pairs), "f1": _percent(f1 for _, f1 in pairs)}
    if not version_2:
        return results
    results["total"] = len(pairs)
    for name, answerable in (("HasAns", True), ("NoAns", False)):
        kind = [pair for pair, question in zip(pairs, questions, strict=True) if bool(question.answers) is answerable]
        if kind:
            results[f"{name}_exact"] = _percent(exact for exact, _ in kind)
            results[f"{name}_f1"] = _percent(f1 for _, f1 in kind)
            results[f"{name}_total"] = len(kind)
    return results


def normalize_answer(text: str) -> str:
    """Return `text` without what the scores ignore: case, punctuation, articles, the width of white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, truth: str) -> float:
    """Return 1 if the two are the same after `normalize_answer`, otherwise 0."""
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1_score(prediction: str, truth: str, version_2: bool) -> float:
    """Return the harmonic mean of the shares of words that the two have in common, from 0 to 1.

    If `normalize_answer` leaves nothing of one of them, version 1.1 gives 0, and version 2 gives 1 if it leaves nothing
    of both.
    """
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(truth).split()
    if not ours or not theirs:
        return float(version_2 and ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _score(prediction: str, question: Question, version_2: bool) -> tuple[float, float]:
    """Return the exact match and the F1, each for the true answer that fits the prediction best."""
    truths: Sequence[str] = question.answers
    if version_2:
        truths = [answer for answer in truths if normalize_answer(answer)] or [""]
    exact = max(exact_match(prediction, truth) for truth in truths)
    return exact, max(f1_score(prediction, truth, version_2) for truth in truths)


def _percent(values: Iterable[float]) -> float:
    return 100 * fmean(values)
