"""Where a rank is, as it says of itself: the line is the user's, and what goes through JSON comes back."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.backends.interface import Call, Calls
from cpudist.supervision.rank_status import RankStatus, status_of

WORLD: Any = SimpleNamespace(rank=3, node_rank=1, hosts=("h0", "h1"))


def asked_from_a_thread(work: Any, backend: Any = None) -> RankStatus:
    """`status_of`, asked for by another thread while the main one is inside `work`."""
    found: list[RankStatus] = []
    inside = threading.Event()

    def ask() -> None:
        assert inside.wait(20)
        found.append(status_of(WORLD, backend))
        done.set()

    done = threading.Event()
    thread = threading.Thread(target=ask)
    thread.start()
    work(inside, done)
    thread.join()
    return found[0]


def test_the_line_is_the_users_and_not_the_librarys() -> None:
    def train(inside: threading.Event, done: threading.Event) -> None:
        # json calls back, so the innermost frames are: this file's, json's, threading's.
        json.loads("{}", object_hook=lambda _: (inside.set(), done.wait(20)))

    place = asked_from_a_thread(train)
    assert (place.rank, place.host, place.function) == (3, "h1", "<lambda>")
    line = train.__code__.co_firstlineno + 2
    assert place.line == f"test_rank_status.py:{line}"


def test_a_deferred_call_of_the_library_is_not_taken_for_the_users() -> None:
    def train(inside: threading.Event, done: threading.Event) -> None:
        inside.set()
        list(map(done.wait, [20]))  # blocked in threading.py, below this line

    place = asked_from_a_thread(train)
    assert place.function == "train"
    assert place.line == f"test_rank_status.py:{train.__code__.co_firstlineno + 2}"


def waits(inside: threading.Event, done: threading.Event) -> None:
    inside.set()
    assert done.wait(20)


def test_of_many_calls_under_way_each_groups_oldest_and_newest_are_told() -> None:
    calls = [Call("all_reduce", sequence=n) for n in (5, 6, 7)]
    others = [Call("all_gather", "tp", sequence=9), Call("recv", peer=1)]
    backend = SimpleNamespace(calls=lambda: Calls((*calls, *others), (Call("all_reduce", sequence=4),)))

    place = asked_from_a_thread(waits, backend)
    assert place.under_way == (calls[0], calls[2], *others)
    assert place.finished == (Call("all_reduce", sequence=4),)


def test_calls_that_the_backend_cannot_tell_are_not_known() -> None:
    assert not asked_from_a_thread(waits, SimpleNamespace(calls=lambda: None)).calls_known
    assert asked_from_a_thread(waits, SimpleNamespace(calls=Calls)).calls_known
    assert asked_from_a_thread(waits).calls_known  # before the backend has started there are none


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
