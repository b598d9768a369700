"""What the store keeps, and who is told of what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cpudist.store.values import Values, Wait

KEYS = st.sampled_from([b"a", b"b", b"c"])


@given(
    events=st.lists(st.one_of(KEYS, st.tuples(st.sampled_from([all, any]), st.lists(KEYS, min_size=1, max_size=3)))),
)
def test_everybody_is_told_once_as_soon_as_the_keys_are_there(events: list) -> None:
    values, there, waits = Values(), set(), []
    for event in events:
        if isinstance(event, bytes):
            values.set(event, b"")
            there.add(event)
        else:
            told: list[bool] = []
            wait = Wait(list(event[1]), event[0], told.append)
            values.wait(wait, 1000)
            waits.append((wait, told))
        for wait, told in waits:
            assert told == ([True] if wait.enough(key in there for key in wait.keys) else [])
    for wait, told in waits:
        values.forget(wait)
        values.set(b"a", b""), values.set(b"b", b""), values.set(b"c", b"")
        assert len(told) <= 1
    assert not values._waiting, "nobody is kept for ever"


def test_whose_time_is_over_is_told_so_and_the_next_deadline_is_known() -> None:
    values = Values()
    told: list[tuple[str, bool]] = []
    values.wait(Wait([b"never"], any, lambda there: told.append(("late", there))), 1000)
    values.wait(Wait([b"never"], any, lambda there: told.append(("soon", there))), -1)
    left = values.expire()
    assert told == [("soon", False)]
    assert 900 < left <= 1000
    values.set(b"never", b"")
    assert told == [("soon", False), ("late", True)]
    assert values.expire() is None
