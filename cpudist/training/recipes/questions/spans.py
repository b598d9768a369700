"""Questions to windows of tokens, and from the logits of the windows back to answers and their scores.

A context that is too long for the model is cut into windows that overlap. Every window is a sample with a label of
its own: where the answer starts and ends, or, where the answer is not in it, the position of the CLS token. The
answer to a question is the best span of all its windows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.questions import squad
from cpudist.training.recipes.questions.squad import Question
from cpudist.version import __version__

_OUTSIDE = -1  # the character position of a token that is not of the context

# A window's columns that its model does not read: its question, the position of its CLS token, and the characters of
# the context that each token covers.
QUESTION, CLS, CHAR_START, CHAR_END = "question", "cls", "char_start", "char_end"

Array = NDArray[Any]

_SAMPLES = 4


@dataclass(frozen=True)
class Cutter:
    """Cuts questions into windows of at most `max_length` tokens, of which `stride` are those of the window before."""

    tokenizer: PreTrainedTokenizerBase
    max_length: int
    stride: int

    def cut(self, questions: Sequence[Question], padded: bool, arguments: TrainingArguments) -> Dataset:
        """The windows of `questions`, made and cached by the first rank of each node, read by the others.

        Windows that are to be evaluated must be `padded` to `max_length`; they know which characters they cover.
        """
        padded = padded or self.tokenizer.padding_side == "left"  # padding them later would move their labels
        path = Path(datasets.config.HF_DATASETS_CACHE) / "cpudist" / f"qa-{self._key(questions, padded)}.arrow"
        with arguments.main_process_first(local=True, desc="cutting contexts into windows"):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = Dataset.from_list([asdict(question) for question in questions])
                rows.map(
                    self._cut,
                    with_indices=True,
                    fn_kwargs={"padded": padded},
                    batched=True,
                    remove_columns=rows.column_names,
                    new_fingerprint=path.stem,  # datasets cannot hash a tokenizer reliably
                    cache_file_name=str(path),
                    desc=f"Cutting contexts into windows of {self.max_length} tokens",
                )
            return Dataset.from_file(str(path))

    def _key(self, questions: Sequence[Question], padded: bool) -> str:
        """What the windows depend on, hashed: the same on all ranks and in all runs."""
        tokenizer = self.tokenizer
        # The rules for cutting and padding are those of the latest call: with them, the key would change with use.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        parts = [__version__, tokenizer.backend_tokenizer.to_str(), tokenizer.padding_side]
        parts += [repr([tokenizer.cls_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id])]
        parts += [repr(tokenizer.model_input_names), repr((self.max_length, self.stride, padded))]
        digest = hashlib.sha256()
        for part in (*parts, *map(repr, questions)):
            digest.update(part.encode())
        return digest.hexdigest()[:32]

    def _cut(self, batch: dict[str, list[Any]], indices: list[int], padded: bool) -> dict[str, Any]:
        # Blanks before a question, as some files have them, would take room from the context.
        texts, contexts = [text.lstrip() for text in batch["text"]], batch["context"]
        self._check_lengths(batch["id"], texts)
        # Models that are padded on the left have the context, which may be cut, on the left as well.
        context_first = self.tokenizer.padding_side == "left"
        windows = self.tokenizer(
            *((contexts, texts) if context_first else (texts, contexts)),
            truncation="only_first" if context_first else "only_second",
            max_length=self.max_length,
            stride=self.stride,
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
            cls = self._cls_position(windows["input_ids"][window])
            start, end = _label(chars, batch["answers"][owner], batch["starts"][owner]) or (cls, cls)
            values = (start, end, indices[owner], cls, chars[:, 0], chars[:, 1])
            for column, value in zip(columns.values(), values, strict=False):
                column.append(value)
        return {**windows, **columns}

    def _check_lengths(self, ids: list[str], texts: list[str]) -> None:
        """The tokenizer would end the process where a question leaves a context no more room than the stride."""
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        for name, tokens in zip(ids, self.tokenizer(texts, add_special_tokens=False)["input_ids"], strict=True):
            room = self.max_length - special - len(tokens)
            if room <= self.stride:
                raise UserError(
                    f"question {name} has {len(tokens)} tokens and leaves its context {max(room, 0)} of "
                    f"{self.max_length}, which must be more than --doc_stride {self.stride}"
                )

    def _cls_position(self, ids: list[int]) -> int:
        for token in (self.tokenizer.cls_token_id, self.tokenizer.bos_token_id):
            if token in ids:
                return ids.index(token)
        return 0


def _label(chars: Array, answers: Sequence[str], starts: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last token of the first answer, or None if not all of it is in the window."""
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
    """How an answer is looked for; `null_threshold` None means that every question has one."""

    n_best: int = 20
    max_tokens: int = 30
    null_threshold: float | None = None


def best_answers(
    questions: Sequence[Question], windows: Dataset, start_logits: Array, end_logits: Array, search: Search
) -> dict[str, str]:
    """The answer to each question by its id, empty for "no answer"; `windows` as cut with padding, logits per window.

    A span's score is the logit of its start and that of its end. "No answer" scores those of the CLS token, in the
    window that likes it least; it wins if it is better than the best span by more than `null_threshold`.
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
    """The score of a window's best span and the characters from which to which it goes; None where there is none."""
    # Stable, so that equal logits give the same answer everywhere.
    first = np.argsort(-start, kind="stable")[: search.n_best, None]
    last = np.argsort(-end, kind="stable")[None, : search.n_best]
    valid = (char_start[first] != _OUTSIDE) & (char_end[last] > char_start[first])
    valid &= (last >= first) & (last - first < search.max_tokens)
    if not valid.any():
        return None
    scores = np.where(valid, start[first] + end[last], -np.inf)
    i, j = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return float(scores[i, j]), int(char_start[first[i, 0]]), int(char_end[last[0, j]])


class Judge:
    """From the rows of an evaluation to its metrics; keeps the answers of the latest."""

    def __init__(self, questions: Sequence[Question], windows: Dataset | None, search: Search) -> None:
        self.questions = questions
        self.predictions: dict[str, str] = {}
        self._windows = windows
        self._search = search

    def __call__(self, rows: dict[str, Array]) -> dict[str, float]:
        """Every rank computes the same from the same rows."""
        logits = rows["start_logits"], rows["end_logits"]
        self.predictions = best_answers(self.questions, self._windows, *logits, self._search)
        return squad.scores(self.predictions, self.questions, self._search.null_threshold is not None)

    def sample(self) -> str:
        """A few questions from all over the data, as they were answered and with the true answers."""
        step = max(1, len(self.questions) // _SAMPLES)
        entries = []
        for question in self.questions[::step][:_SAMPLES]:
            truths = " | ".join(dict.fromkeys(question.answers))
            answer = self.predictions[question.id]
            entries.append(f"{question.text.strip()}\n  answer: {answer or '(none)'}\n  true:   {truths or '(none)'}")
        return "\n".join(entries)
