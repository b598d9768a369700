"""What the store keeps, and who is told of what."""

import asyncio

from clocks import Clock
from hypothesis import given
from hypothesis import strategies as st

from cpudist.store import values as values_module
from cpudist.store.values import Values, Wait

LOOP = asyncio.new_event_loop()
KEYS = st.sampled_from([b"a", b"b", b"c"])


@given(
    events=st.lists(st.one_of(KEYS, st.tuples(st.sampled_from([all, any]), st.lists(KEYS, min_size=1, max_size=3)))),
)
def test_everybody_is_told_once_as_soon_as_the_keys_are_there(events: list) -> None:
    values, there, waits = Values(LOOP), set(), []
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


def test_waits_end_at_their_deadlines_unless_they_are_cancelled() -> None:
    values, told, over = Values(LOOP), [], LOOP.create_future()
    waits = {
        name: Wait([name.encode()], any, lambda there, name=name: told.append((name, there)))
        for name in ("set", "soon", "never")
    }
    for seconds, wait in enumerate(waits.values()):
        values.wait(wait, 0.01 * seconds + 0.05)
    values.wait(Wait([b"end"], any, over.set_result), 0.1)
    values.forget(waits["never"])
    values.set(b"set", b"")
    assert not LOOP.run_until_complete(over)
    assert told == [("set", True), ("soon", False)]
    assert not values._waiting


def test_the_age_of_a_value_counts_from_its_last_change(clock: Clock) -> None:
    clock.drives(values_module)
    values = Values(LOOP)
    values.set(b"key", b"")
    clock.now += 3
    assert (values.age(b"key"), values.age(b"missing")) == (3, None)
    values.append(b"key", b"x")
    assert values.age(b"key") == 0
    values.delete(b"key")
    assert values.age(b"key") is None
    assert (values.delete(b"key"), values._since) == (False, {})
