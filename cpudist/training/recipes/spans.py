"""Cut questions and their contexts into windows of tokens, and find answers from the logits of the windows.

A context that is too long for the model is cut into windows that overlap. Every window is a sample with its own label:
where the answer starts and ends, or the position of the CLS token where the window does not hold the answer. The answer
to a question is the best span of all its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.data import map_cached
from cpudist.training.recipes.squad import Question

_OUTSIDE = -1  # the character position of a token that is not part of the context

# Columns of a window that the model does not read: the number of its question, the position of its CLS token, and the
# characters of the context that each token covers.
QUESTION, CLS, CHAR_START, CHAR_END = "question", "cls", "char_start", "char_end"

Array = NDArray[Any]


def cut_into_windows(
    questions: Sequence[Question],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    stride: int,
    arguments: TrainingArguments,
    *,
    padded: bool,
) -> Dataset:
    """Cut questions into windows.

    Args:
        questions: to be cut, in this order.
        tokenizer: a fast one.
        max_length: the tokens of a window, at most.
        stride: the tokens that two neighbouring windows have in common.
        arguments: for the order of the ranks.
        padded: pad all windows to `max_length`, and add QUESTION, CLS, CHAR_START and CHAR_END, for evaluations.

    Returns:
        The inputs of a model, and "start_positions" and "end_positions", the tokens where the answer starts and ends.

    Raises:
        UserError: a question leaves no room for its context.
    """
    padded = padded or tokenizer.padding_side == "left"  # padding on the left, done later, would move the labels
    options = {"tokenizer": tokenizer, "max_length": max_length, "stride": stride, "padded": padded}
    rows = Dataset.from_list([asdict(question) for question in questions])
    desc = f"Cutting contexts into windows of {max_length} tokens"
    return map_cached(rows, _cut, options, arguments, desc, with_indices=True)


def _cut(
    batch: dict[str, list[Any]],
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    stride: int,
    padded: bool,
) -> dict[str, Any]:
    # Some files have blanks before a question, which would take room from the context.
    texts, contexts = [text.lstrip() for text in batch["text"]], batch["context"]
    _check_lengths(batch["id"], texts, tokenizer, max_length, stride)
    # Models that are padded on the left have the context, the part that may be cut, on the left too.
    context_first = tokenizer.padding_side == "left"
    windows = tokenizer(
        *((contexts, texts) if context_first else (texts, contexts)),
        truncation="only_first" if context_first else "only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if padded else False,
    )
    owners, offsets = windows.pop("overflow_to_sample_mapping"), windows.pop("offset_mapping")
    columns: dict[str, list[Any]] = {name: [] for name in ("start_positions", "end_positions")}
    if padded:
        columns.update({name: [] for name in (QUESTION, CLS, CHAR_START, CHAR_END)})
    for window, owner in enumerate(owners):
        inside = np.array([part == (0 if context_first else 1) for part in windows.sequence_ids(window)])
        chars = np.where(inside[:, None], np.array(offsets[window]), _OUTSIDE).astype(np.int32)
        cls = _cls_position(windows["input_ids"][window], tokenizer)
        start, end = _label(chars, batch["answers"][owner], batch["starts"][owner]) or (cls, cls)
        values = (start, end, indices[owner], cls, chars[:, 0], chars[:, 1])
        for column, value in zip(columns.values(), values, strict=False):
            column.append(value)
    return {**windows, **columns}


def _check_lengths(
    ids: list[str], texts: list[str], tokenizer: PreTrainedTokenizerBase, max_length: int, stride: int
) -> None:
    """Check that every question leaves its context more room than the stride; otherwise the tokenizer would abort."""
    special = tokenizer.num_special_tokens_to_add(pair=True)
    for name, tokens in zip(ids, tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
        room = max_length - special - len(tokens)
        if room <= stride:
            raise UserError(
                f"question {name} has {len(tokens)} tokens and leaves its context {max(room, 0)} of {max_length}, "
                f"no more than --doc_stride {stride}; give a longer --max_seq_length, or a smaller --doc_stride"
            )


def _cls_position(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> int:
    for token in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        if token in ids:
            return ids.index(token)
    return 0


def _label(chars: Array, answers: Sequence[str], starts: Sequence[int]) -> tuple[int, int] | None:
    """Return the first and the last token of the first answer; None if the window does not hold all of it."""
    inside = np.flatnonzero(chars[:, 0] != _OUTSIDE)
    if not answers or not len(inside):
        return None
    text = answers[0].strip()
    begin = starts[0] + answers[0].index(text)
    end = begin + len(text)
    if begin < chars[inside[0], 0] or end > chars[inside[-1], 1]:
        return None
    touched = inside[(chars[inside, 1] > begin) & (chars[inside, 0] < end)]
    return (int(touched[0]), int(touched[-1])) if len(touched) else None


@dataclass(frozen=True)
class Search:
    """How an answer is searched."""

    n_best: int = 20  # starts and ends to consider in each window
    max_tokens: int = 30
    null_threshold: float | None = None  # of "no answer" over the best span, in logits; None: all have an answer


def best_answers(
    questions: Sequence[Question], windows: Dataset, start_logits: Array, end_logits: Array, search: Search
) -> dict[str, str]:
    """Return the best answer for the id of each question, empty for "no answer".

    The score of a span is the sum of the logits of its start and its end. The score of "no answer" is that of the CLS
    token, the lowest in all windows; it wins if it is higher than the best span's by more than `null_threshold`.

    Args:
        questions: the questions.
        windows: their windows, padded, in the order of `questions`.
        start_logits, end_logits: shape (windows, tokens).
        search: which spans are considered.
    """
    columns = windows.select_columns([QUESTION, CLS, CHAR_START, CHAR_END]).with_format("numpy")[:]
    best: dict[int, tuple[float, str]] = {}
    null: dict[int, float] = {}
    for row, owner in enumerate(columns[QUESTION].tolist()):
        start, end, cls = start_logits[row], end_logits[row], columns[CLS][row]
        null[owner] = min(null.get(owner, np.inf), float(start[cls] + end[cls]))
        found = _best_span(start, end, columns[CHAR_START][row], columns[CHAR_END][row], search)
        if found is not None and (owner not in best or found[0] > best[owner][0]):
            best[owner] = found[0], questions[owner].context[found[1] : found[2]].strip()
    answers = {}
    for number, question in enumerate(questions):
        score, text = best.get(number, (-np.inf, ""))
        no_answer = search.null_threshold is not None and null[number] - score > search.null_threshold
        answers[question.id] = "" if no_answer else text
    return answers


def _best_span(
    start: Array, end: Array, char_start: Array, char_end: Array, search: Search
) -> tuple[float, int, int] | None:
    """Return the score of a window's best span and the characters where it starts and ends; None without a span."""
    # A stable sort, so that equal logits give the same answer on every machine.
    first = np.argsort(-start, kind="stable")[: search.n_best, None]
    last = np.argsort(-end, kind="stable")[None, : search.n_best]
    valid = (char_start[first] != _OUTSIDE) & (char_end[last] > char_start[first])
    valid &= (last >= first) & (last - first < search.max_tokens)
    if not valid.any():
        return None
    scores = np.where(valid, start[first] + end[last], -np.inf)
    i, j = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[i, j]), int(char_start[first[i, 0]]), int(char_end[last[0, j]])
