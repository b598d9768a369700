"""Questions to windows, and from logits back to answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import questions
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.spans import Search, best_answers, cut_into_windows
from cpudist.training.recipes.squad import Question

TOKENIZERS = {side: questions.small_tokenizer(side) for side in ("right", "left")}


@pytest.fixture
def arguments() -> TrainingArguments:
    return TrainingArguments(output_dir="unused", use_cpu=True, report_to=[])


def _question(context: str, *answers: str, name: str = "q", text: str = "what is it?") -> Question:
    return Question(name, text, context, answers, tuple(context.index(answer) for answer in answers))


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
    windows = cut_into_windows(asked, tokenizer, 48, 12, arguments, padded=True)
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
    right, left = TOKENIZERS["right"], TOKENIZERS["left"]
    windows = cut_into_windows(asked, right, 48, 12, arguments, padded=False)
    assert len({len(ids) for ids in windows["input_ids"]}) == 2
    assert cut_into_windows(asked, right, 48, 12, arguments, padded=False).cache_files == windows.cache_files
    for other in ((asked[:1], right, 48, 12), (asked, right, 48, 11)):
        assert cut_into_windows(*other, arguments, padded=False).cache_files != windows.cache_files
    # Padding on the left moves what was labelled, so it cannot be left to the batches.
    assert {len(ids) for ids in cut_into_windows(asked, left, 48, 12, arguments, padded=False)["input_ids"]} == {48}


def test_a_question_that_leaves_no_room(arguments: TrainingArguments) -> None:
    asked = [_question("some text", "text"), _question("some text", name="long", text="why? " * 30)]
    with pytest.raises(UserError, match="question long has 90 tokens"):
        cut_into_windows(asked, TOKENIZERS["right"], 48, 12, arguments, padded=True)


_WORDS = st.lists(st.text("abcxyz0189", min_size=1, max_size=6), min_size=1, max_size=40)


@settings(max_examples=60)
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

    length = 20 + stride + data.draw(st.integers(0, 40))
    windows = cut_into_windows(asked, tokenizer, length, stride, arguments, padded=True)
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
    windows = cut_into_windows(asked, TOKENIZERS["right"], 48, 12, arguments, padded=True)
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
    assert answer({1: 9, starts["b"]: 8}, {1: 9, ends["b"]: 8}) == "bb"  # token 1 belongs to the question
    assert answer({1: 9, starts["b"]: 8}, {1: 9, ends["b"]: 8}, n_best=1) == ""
    # [CLS] has 10, the span 8: no answer wins by more than 1.5, but not by more than 2.
    none = {0: 5, starts["d"]: 4}, {0: 5, ends["d"]: 4}
    assert answer(*none) == answer(*none, null_threshold=2.0) == "dd"
    assert answer(*none, null_threshold=1.5) == ""
