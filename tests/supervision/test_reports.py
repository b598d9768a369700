"""Where each rank is, as it says of itself, and who is missing: every case as printed, and bounds for any case."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.backends.interface import Call, Calls
from cpudist.processes.lost_ranks import LostRank
from cpudist.supervision import rank_texts
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.rank_status import RankStatus, beat_seconds, status_of
from cpudist.supervision.reports import Explanation
from cpudist.waiting import LONG_WAIT_SECONDS

WORLD: Any = SimpleNamespace(rank=3, node_rank=1, hosts=("h0", "h1"))


def recorded(case: str) -> list[str]:
    blocks = (Path(__file__).parents[1] / "messages.txt").read_text(encoding="utf-8").split("\n\n")
    return next(lines for name, *lines in map(str.splitlines, blocks) if name == f"[{case}]")


def test_the_line_is_the_users_and_not_the_librarys() -> None:
    """Also where the library calls back, as json does here, and where another thread asks."""
    found: list[RankStatus] = []
    json.loads("{}", object_hook=lambda _: found.append(status_of(WORLD, None)))
    with ThreadPoolExecutor(1) as pool:
        found.append(pool.submit(status_of, WORLD, None).result())
    exec(compile("add(status_of(WORLD, None))", "cell 3", "exec"), {**globals(), "add": found.append})
    assert found.pop().line == "cell 3, line 1"
    this = test_the_line_is_the_users_and_not_the_librarys.__code__
    line = f"test_reports.py:{this.co_firstlineno + 3}"
    assert found[0] == RankStatus(3, "h1", line)
    assert found[1].line == f"test_reports.py:{this.co_firstlineno + 5}"


def test_each_groups_oldest_and_newest_call_are_told_if_the_backend_knows_them() -> None:
    calls = [Call("all_reduce", sequence=n) for n in (5, 6, 7)]
    others = [Call("all_gather", "tp", sequence=9), Call("recv", peer=1)]
    finished = (Call("all_reduce", sequence=4),)
    knows: Any = SimpleNamespace(calls=lambda: Calls((*calls, *others), finished))
    place = status_of(WORLD, knows, at_end=True)
    assert (place.under_way, place.finished, place.at_end) == ((calls[0], calls[2], *others), finished, True)
    unable: Any = SimpleNamespace(calls=lambda: None)
    assert [status_of(WORLD, backend).calls_known for backend in (knows, unable, None)] == [True, False, True]


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


@given(st.builds(RankStatus, NUMBERS, st.text(), st.text(), LISTS, LISTS, st.booleans(), st.booleans()))
def test_json_and_back(place: RankStatus) -> None:
    assert RankStatus.from_json(place.to_json()) == place


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": 1}', '{"under_way": [1], "finished": []}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own is one too
        RankStatus.from_json(text)


def test_many_ranks_ask_the_store_less_often() -> None:
    """As docs/scale.md says: all together 500 times a second at most."""
    assert [beat_seconds(ranks) for ranks in (1, 16, 32, 64, 500, 1000)] == [0.25, 0.25, 0.5, 1, 1, 2]


def test_silent_ranks_are_known_before_a_wait_is_reported() -> None:
    for ranks in (2, 64, 1000):
        assert 3 * beat_seconds(ranks) < Heartbeat(ranks, None, 1).answer_seconds < LONG_WAIT_SECONDS


MB = 1 << 20
HOSTS = ["h0", "h0", "h1", "h1"]
REDUCE = Call("all_reduce", sequence=812, bytes=16 * MB, dtype="float32")
BEFORE = (replace(REDUCE, sequence=811),)


def waits(rank: int, *calls: Call, line: str = "train.py:88") -> RankStatus:
    return RankStatus(rank, HOSTS[rank % 4], line, calls, BEFORE)


def computes(rank: int, line: str = "train.py:71") -> RankStatus:
    return RankStatus(rank, HOSTS[rank % 4], line, (), BEFORE)


SMALL, GATHER = replace(REDUCE, bytes=8 * MB), Call("all_gather", sequence=812, bytes=4)
PAIR = Call("broadcast", "pipeline", (2, 3), sequence=7, bytes=1024)
NEWEST = replace(REDUCE, sequence=815)
RECEIVE = Call("recv", peer=3, bytes=4 * MB)
SHARES = [replace(REDUCE, name="all_to_all_single", bytes=size) for size in (1, 2, 3)]
ENDED = RankStatus(1, "h0", "train.py:99", (), BEFORE, at_end=True)
BLOCKED = RankStatus(3, "h1", "train.py:90", calls_known=False)
WAIT = [waits(rank, REDUCE) for rank in range(4)]

# The sentences of each are in tests/messages.txt.
CASES: dict[str, list[RankStatus | None]] = {
    "one rank is missing": [*WAIT[:3], computes(3)],
    "several are missing in two places": [computes(0), WAIT[1], computes(2, "data.py:9"), computes(3)],
    "a rank does not answer": [*WAIT[:3], None],
    "several ranks do not answer": [WAIT[0], None, None, computes(3)],
    "no rank answers": [None, None, None, None],
    "no rank waits": [computes(rank) for rank in range(4)],
    "the calls of a rank are not known": [*WAIT[:3], BLOCKED],
    "the calls of several ranks are not known": [*WAIT[:2], replace(BLOCKED, rank=2), BLOCKED],
    "the calls of a rank are not known, and another rank is missing": [WAIT[0], computes(1), WAIT[2], BLOCKED],
    "a rank is at its end": [WAIT[0], ENDED, *WAIT[2:]],
    "a rank is at its end, and another is late": [computes(0), ENDED, *WAIT[2:]],
    "the calls differ": [*WAIT[:3], waits(3, GATHER, line="eval.py:5")],
    "the sizes differ": [WAIT[0], waits(1, SMALL), *WAIT[2:]],
    "the sizes may differ": [*(waits(rank, call) for rank, call in enumerate(SHARES)), computes(3)],
    "no rank is missing": [*WAIT],
    # Ranks 0 and 1 wait for rank 2; it waits in another group for rank 3, which waits for nothing.
    "the cause in another group comes first": [*WAIT[:2], waits(2, PAIR, line="model.py:5"), computes(3)],
    # A rank whose newest call is as far as the others' has reached all before, though its oldest is not complete.
    "calls overlap": [*(waits(rank, REDUCE, NEWEST) for rank in range(3)), WAIT[3]],
    "a message is missing": [computes(0), computes(1), waits(2, RECEIVE, line="pipe.py:60"), computes(3)],
    "the sender of a message does not answer": [computes(0), computes(1), waits(2, RECEIVE), None],
    "a message of any rank is missing": [waits(0, Call("recv")), computes(1), computes(2), computes(3)],
    "a chain of messages": [
        *(waits(rank, Call("recv", peer=rank + 1), line="p.py:1") for rank in range(3)),
        computes(3),
    ],
}

BLAMED = {
    "one rank is missing": [3],
    "several are missing in two places": [0, 2, 3],
    "a rank does not answer": [3],
    "several ranks do not answer": [1, 2],
    "no rank answers": [0, 1, 2, 3],
    "the calls of a rank are not known, and another rank is missing": [1],
    "a rank is at its end": [1],
    "a rank is at its end, and another is late": [0, 1],
    "the sizes may differ": [3],
    "the cause in another group comes first": [3],
    "the sender of a message does not answer": [3],
}


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(case: str) -> None:
    found = Explanation(dict(enumerate(CASES[case])), HOSTS)
    assert (found.sentences(), found.blamed()) == (recorded(f"deadlock: {case}"), BLAMED.get(case, []))


def test_what_a_rank_does() -> None:
    reduces, sends = waits(0, replace(REDUCE, seconds=7.13)), waits(0, replace(RECEIVE, name="send"))
    assert [rank_texts.summary(place) for place in (ENDED, reduces, sends, computes(0), RankStatus(0, "h0"))] == [
        "at the end of its script, last in train.py:99",
        "in all_reduce #812 (16 MB, train.py:88) for 7.1 s",
        "in send to rank 3 (4 MB, train.py:88) for 0.0 s",
        "in train.py:71, after all_reduce #811 (16 MB)",
        "in no line of Python",
    ]


def test_of_many_ranks_that_are_late_or_lost_the_first_are_named() -> None:
    late = dict(enumerate([ENDED, *(computes(rank) for rank in range(1, 6))]))
    first, *others = rank_texts.unfinished(late, 7)
    assert first == "after 7 s at the end still waiting for rank 1 (h0), last in train.py:71"
    assert len(others) == 2
    ended = [LostRank("ended", rank) for rank in (2, 0, 1, 3)]
    cut_off = [LostRank("unreachable", rank) for rank in (2, 3)]
    assert [(one.rank, one.how) for one in (ended[1], cut_off[0])] == [(0, "ended"), (2, "unreachable")]
    named, *unknown, more = rank_texts.explain_lost(ended, {2: RankStatus(2, "h1")}, HOSTS)
    assert re.fullmatch("rank 2 on h1 .*; it was last seen in no line of Python", named)
    assert all(re.fullmatch("rank [01] on h0 [^;]*", one) for one in unknown)
    assert more == "1 more rank lost"
    (one_of_its_host,) = rank_texts.explain_lost(cut_off, {}, HOSTS)
    assert one_of_its_host.startswith("rank 2 on h1 cannot be reached any more")


def test_ranks_that_have_ended_are_named_where_no_rank_waits_for_them_any_more() -> None:
    found = Explanation({0: computes(0), 1: ENDED}, HOSTS)
    assert found.sentences() == []
    assert found.ended() == [
        "rank 1 (h0) makes no calls any more; it was at the end of its script, last in train.py:99"
    ]


def test_a_rank_at_its_end_deadlocks_a_collective_but_not_while_groups_end() -> None:
    """A rank without calls in the group has either made none, or has destroyed the group after them."""
    made_none, destroyed = replace(ENDED, finished=(), unused=("",)), replace(ENDED, finished=())
    made_one = replace(ENDED, finished=(replace(REDUCE, sequence=1),))
    ends = [(4, end, True) for end in (ENDED, made_none, made_one)]
    for seconds, other, deadlocked in (*ends, (4, destroyed, False), (1, ENDED, False), (4, computes(1), False)):
        waiting = waits(0, replace(REDUCE, seconds=seconds))
        assert Explanation({0: waiting, 1: other, 2: WAIT[2]}, HOSTS).deadlocked() == deadlocked


PLACES = st.builds(
    RankStatus,
    st.just(0),
    st.just("h"),
    st.sampled_from(["a.py:1", "b.py:2", ""]) | st.integers(0, 10**4).map("c.py:{}".format),
    st.lists(
        st.builds(
            Call,
            st.sampled_from(["all_reduce", "broadcast", "recv"]),
            st.sampled_from(["", "tp"]),
            st.none() | st.just((0, 1, 2)),
            st.none() | st.integers(1, 3),
            peer=st.none() | st.integers(0, 5),
            bytes=st.none() | st.integers(0, 2),
        ),
        max_size=2,
    ).map(tuple),
)


@given(st.lists(st.none() | PLACES, min_size=1, max_size=20), st.integers(0, 1000))
def test_it_is_short_and_names_who_does_not_answer(places: list[RankStatus | None], more: int) -> None:
    all_places = [place and replace(place, rank=rank) for rank, place in enumerate([*places, *[places[-1]] * more])]
    hosts = [f"host{rank // 4}" for rank in range(len(all_places))]
    sentences = Explanation(dict(enumerate(all_places)), hosts).sentences()
    assert len(sentences) <= 16
    assert all(len(sentence) < 1000 and "\n" not in sentence for sentence in sentences)
    assert (None in all_places) == any("not answer" in sentence for sentence in sentences)


def test_a_thousand_ranks() -> None:
    hosts = [f"node{rank // 8}" for rank in range(1000)]
    ended = {rank: replace(computes(rank), rank=rank) for rank in (17, 500, 501)}
    places = {rank: ended.get(rank) or replace(waits(rank, REDUCE), rank=rank) for rank in range(1000)}
    assert Explanation(places, hosts).sentences() == recorded("deadlock: three of a thousand ranks are missing")
    everywhere = {rank: replace(computes(rank, f"x.py:{rank % 7}"), rank=rank) for rank in range(1000)}
    lines = Explanation({**everywhere, 0: waits(0, REDUCE)}, hosts).sentences()
    assert len(lines) == 4
    assert lines[-1] == "and 4 more like these"
    assert len(max(lines, key=len)) < 250
    assert " more (node" in lines[0], "of ranks, not only of hosts"


def test_the_sentences_of_lost_ranks() -> None:
    losses = [LostRank("ended", 3, "h1"), LostRank("unreachable", 3, "h1", "last in train.py:88")]
    losses += [LostRank(9), LostRank(11, host="h1"), LostRank(99, 1)]
    assert [str(lost) for lost in losses] == recorded("lost ranks")
