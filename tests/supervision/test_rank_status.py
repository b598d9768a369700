"""Where a rank is, as it says of itself: the line is the user's, and what goes through JSON comes back."""

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.backends.interface import Call, Calls
from cpudist.supervision.rank_status import RankStatus, beat_seconds, status_of

WORLD: Any = SimpleNamespace(rank=3, node_rank=1, hosts=("h0", "h1"))


def test_the_line_is_the_users_and_not_the_librarys() -> None:
    """Also where the library calls back, as json does here, and where another thread asks."""
    found: list[RankStatus] = []
    json.loads("{}", object_hook=lambda _: found.append(status_of(WORLD, None)))
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(status_of, WORLD, None).result())
    exec(compile("add(status_of(WORLD, None))", "cell 3", "exec"), {**globals(), "add": found.append})
    assert found.pop().line == "cell 3, line 1"
    this = test_the_line_is_the_users_and_not_the_librarys.__code__
    line = f"test_rank_status.py:{this.co_firstlineno + 3}"
    assert found[0] == RankStatus(3, "h1", line, "<lambda>")
    assert (found[1].line, found[1].function) == (f"test_rank_status.py:{this.co_firstlineno + 5}", this.co_name)


def test_each_groups_oldest_and_newest_call_are_told() -> None:
    calls = [Call("all_reduce", sequence=n) for n in (5, 6, 7)]
    others = [Call("all_gather", "tp", sequence=9), Call("recv", peer=1)]
    finished = (Call("all_reduce", sequence=4),)
    backend: Any = SimpleNamespace(calls=lambda: Calls((*calls, *others), finished))
    place = status_of(WORLD, backend, at_end=True)
    assert (place.under_way, place.finished, place.at_end) == ((calls[0], calls[2], *others), finished, True)


@pytest.mark.parametrize(
    ("backend", "known"),
    [(SimpleNamespace(calls=lambda: None), False), (SimpleNamespace(calls=Calls), True), (None, True)],
)
def test_calls_that_the_backend_cannot_tell_are_not_known(backend: Any, known: bool) -> None:
    """Before the backend has started there are none."""
    assert status_of(WORLD, backend).calls_known == known


NUMBERS = st.integers(0, 2**40)
CALLS = st.builds(
    Call,
    name=st.sampled_from(["all_reduce", "recv"]),
    group=st.text(max_size=5),
    ranks=st.none() | st.lists(NUMBERS, max_size=3).map(tuple),
    sequence=st.none() | NUMBERS,
    peer=st.none() | NUMBERS,
    bytes=st.none() | NUMBERS,
    dtype=st.sampled_from(["", "float32"]),
    shape=st.lists(NUMBERS, max_size=3).map(tuple),
    seconds=st.floats(0, 1e6),
)
LISTS = st.lists(CALLS, max_size=3).map(tuple)


@given(st.builds(RankStatus, NUMBERS, st.text(), st.text(), st.text(), LISTS, LISTS, st.booleans(), st.booleans()))
def test_json_and_back(place: RankStatus) -> None:
    assert RankStatus.from_json(place.to_json()) == place


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": 1}', '{"under_way": [1], "finished": []}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own is one too
        RankStatus.from_json(text)


def test_many_ranks_ask_the_store_less_often() -> None:
    """As docs/scale.md says: all together 500 times a second at most."""
    assert [beat_seconds(ranks) for ranks in (1, 16, 32, 64, 500, 1000)] == [0.25, 0.25, 0.5, 1, 1, 2]
