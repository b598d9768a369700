"""JSON of another process: an object of the right types, or ValueError."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist import answers

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@dataclass(frozen=True)
class Part:
    seconds: float
    optional: int | None = None


@dataclass(frozen=True)
class Whole:
    name: str
    part: Part
    parts: list[Part]
    pair: tuple[float, float]
    numbers: tuple[int, ...]
    counts: dict[int, int]
    kind: Literal["a", "b"]
    certain: bool = True


WHOLE = Whole("x", Part(1.5, 2), [Part(1.0)], (1.0, 2.0), (1, 2, 3), {1: 2}, "b")


def test_what_was_written_is_read_after_a_greeting() -> None:
    output = f"Welcome!\n\n{json.dumps(asdict(WHOLE))}\n"
    assert answers.read(Whole, answers.last_line(output)) == WHOLE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("name", 1), ("name", None), ("certain", 1), ("kind", "c"), ("kind", None), ("part", 3), ("part", {})],
        *[("part", {"seconds": True}), ("part", {"seconds": 10**400}), ("part", {"seconds": 1, "optional": 1.5})],
        *[("part", {"seconds": 1, "other": 1}), ("parts", {"seconds": 1}), ("pair", [1]), ("numbers", ["1"])],
        *[("numbers", [2**63]), ("numbers", [True]), ("counts", {"x": 1}), ("unknown", 1)],
    ],
)
def test_other_values_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of any text
        answers.read(Whole, {**asdict(WHOLE), name: value})


@given(JSON | st.fixed_dictionaries(dict.fromkeys(asdict(WHOLE), JSON)), st.text())
def test_anything_is_read_or_refused(fields: Any, text: str) -> None:
    for output in (text, "[" * 100_000 + text):
        with suppress(ValueError):
            answers.last_line(output)
    try:
        found = answers.read(Whole, fields)
    except ValueError:
        return
    assert asdict(answers.read(Whole, json.loads(json.dumps(asdict(found))))).keys() == asdict(WHOLE).keys()
