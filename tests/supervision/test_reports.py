"""Who is missing, as a user reads it: every case in the words that are printed, and bounds that hold for any case."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cpudist.backends.interface import Call
from cpudist.supervision.rank_status import RankStatus
from cpudist.supervision.reports import explain

MB = 1 << 20
HOSTS = ["h0", "h0", "h1", "h1"]
REDUCE = Call("all_reduce", sequence=812, bytes=16 * MB, dtype="float32")
BEFORE = (replace(REDUCE, sequence=811),)


def waits(rank: int, *calls: Call, line: str = "train.py:88") -> RankStatus:
    return RankStatus(rank, HOSTS[rank % 4], line, "step", calls, BEFORE)


def computes(rank: int, line: str = "train.py:71") -> RankStatus:
    return RankStatus(rank, HOSTS[rank % 4], line, "load", (), BEFORE)


def of(*places: RankStatus | None) -> list[str]:
    return explain(dict(enumerate(places)), HOSTS).sentences


def test_one_rank_is_missing() -> None:
    assert of(waits(0, REDUCE), waits(1, REDUCE), waits(2, REDUCE), computes(3)) == [
        "rank 3 (h1) never reached all_reduce #812 (16 MB, train.py:88); it was last in train.py:71"
    ]


def test_several_are_missing_in_two_places() -> None:
    assert of(computes(0), waits(1, REDUCE), computes(2, "data.py:9"), computes(3)) == [
        "ranks 0, 3 (h0, h1) never reached all_reduce #812 (16 MB, train.py:88); they were last in train.py:71",
        "rank 2 (h1) never reached all_reduce #812 (16 MB, train.py:88); it was last in data.py:9",
    ]


def test_a_rank_that_does_not_answer() -> None:
    assert of(waits(0, REDUCE), waits(1, REDUCE), waits(2, REDUCE), None) == [
        "rank 3 (h1) does not answer: stopped, or the host is gone; "
        "ranks 0-2 (h0, h1) wait in all_reduce #812 (16 MB, train.py:88)"
    ]


def test_nobody_answers_and_nobody_waits() -> None:
    assert of(None, None, None, None) == ["ranks 0-3 (h0, h1) do not answer: stopped, or the host is gone"]
    assert of(computes(0), computes(1), computes(2), computes(3)) == []


def test_a_rank_whose_calls_are_not_known_is_not_called_missing() -> None:
    blocked = RankStatus(3, "h1", "train.py:90", "step", calls_known=False)
    assert of(waits(0, REDUCE), waits(1, REDUCE), waits(2, REDUCE), blocked) == [
        "rank 3 (h1) cannot say whether it has reached all_reduce #812 (16 MB, train.py:88), being inside the "
        "communication library; it was last in train.py:90"
    ]
    assert of(waits(0, REDUCE), computes(1), waits(2, REDUCE), blocked)[0].startswith("rank 1 (h0) never reached")


def test_a_rank_at_its_end() -> None:
    ended = RankStatus(1, "h0", "train.py:99", "<module>", (), BEFORE, at_end=True)
    assert of(waits(0, REDUCE), ended, waits(2, REDUCE), waits(3, REDUCE)) == [
        "rank 1 (h0) never reached all_reduce #812 (16 MB, train.py:88); it was at the end of its script"
    ]


def test_a_rank_at_its_end_is_awaited_in_vain_but_not_while_groups_end() -> None:
    ended = RankStatus(1, "h0", "train.py:99", "<module>", (), BEFORE, at_end=True)
    for seconds, other, in_vain in ((4, ended, True), (1, ended, False), (4, computes(1), False)):
        waiting = waits(0, replace(REDUCE, seconds=seconds))
        assert explain({0: waiting, 1: other}, HOSTS).in_vain == in_vain


def test_ranks_that_called_different_things() -> None:
    gather = Call("all_gather", sequence=812, bytes=4)
    assert of(waits(0, REDUCE), waits(1, REDUCE), waits(2, REDUCE), waits(3, gather, line="eval.py:5")) == [
        "ranks 0-2 (h0, h1) called all_reduce #812 (16 MB, train.py:88), "
        "rank 3 (h1) called all_gather #812 (4 B, eval.py:5): all ranks must make the same calls in the same order"
    ]


def test_ranks_whose_sizes_differ() -> None:
    small = replace(REDUCE, bytes=8 * MB)
    assert of(waits(0, REDUCE), waits(1, small), waits(2, REDUCE), waits(3, REDUCE)) == [
        "ranks 0, 2-3 (h0, h1) called all_reduce #812 (16 MB, train.py:88), "
        "rank 1 (h0) called all_reduce #812 (8 MB, train.py:88): all ranks must make the same calls in the same order"
    ]
    shares = [replace(REDUCE, name="all_to_all_single", bytes=n) for n in (1, 2, 3)]  # theirs may differ
    assert of(*(waits(rank, call) for rank, call in enumerate(shares)), computes(3)) == [
        "rank 3 (h1) never reached all_to_all_single #812 (1 B, train.py:88); it was last in train.py:71"
    ]


def test_nobody_is_missing() -> None:
    assert of(*(waits(rank, REDUCE) for rank in range(4))) == [
        "ranks 0-3 (h0, h1) all reached all_reduce #812 (16 MB, train.py:88), which does not end: "
        "look at the network between them, or for a rank that is very slow"
    ]


def test_the_cause_in_another_group_comes_first() -> None:
    """Ranks 0 and 1 wait for rank 2; it waits in another group for rank 3, which waits for nothing."""
    pair = Call("broadcast", "pipeline", (2, 3), sequence=7, bytes=1024)
    assert of(waits(0, REDUCE), waits(1, REDUCE), waits(2, pair, line="model.py:5"), computes(3)) == [
        "rank 3 (h1) never reached all_reduce #812 (16 MB, train.py:88); it was last in train.py:71",
        "rank 3 (h1) never reached broadcast #7 of group 'pipeline' (1 KB, model.py:5); it was last in train.py:71",
        "rank 2 (h1) never reached all_reduce #812 (16 MB, train.py:88); it was last in model.py:5, "
        "with broadcast #7 of group 'pipeline' (1 KB) under way",
    ]


def test_calls_that_overlap() -> None:
    """A rank whose newest call is as far as the others' has reached all before, though its oldest is not complete."""
    calls = [replace(REDUCE, sequence=n) for n in (812, 815)]
    assert of(waits(0, *calls), waits(1, *calls), waits(2, *calls), waits(3, calls[0])) == [
        "ranks 0-3 (h0, h1) all reached all_reduce #812 (16 MB, train.py:88), which does not end: "
        "look at the network between them, or for a rank that is very slow"
    ]


def test_messages() -> None:
    receive = Call("recv", peer=3, bytes=4 * MB)
    assert of(computes(0), computes(1), waits(2, receive, line="pipe.py:60"), computes(3)) == [
        "rank 2 (h1) waits in recv from rank 3 (4 MB, pipe.py:60); rank 3 (h1) was last in train.py:71"
    ]
    assert of(computes(0), computes(1), waits(2, receive), None) == [
        "rank 3 (h1) does not answer: stopped, or the host is gone",
        "rank 2 (h1) waits in recv from rank 3 (4 MB, train.py:88)",
    ]
    assert of(waits(0, Call("recv")), computes(1), computes(2), computes(3)) == [
        "rank 0 (h0) waits in recv from any rank (train.py:88)"
    ]


def test_a_chain_of_messages_begins_where_it_hangs() -> None:
    chain = [waits(rank, Call("recv", peer=rank + 1), line="p.py:1") for rank in range(3)]
    assert of(*chain, computes(3))[0].startswith("rank 2 (h1) waits in recv from rank 3")


PLACES = st.builds(
    RankStatus,
    st.just(0),
    st.just("h"),
    st.sampled_from(["a.py:1", "b.py:2", ""]) | st.integers(0, 10**4).map("c.py:{}".format),
    st.just("f"),
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
    sentences = explain(dict(enumerate(all_places)), hosts).sentences
    assert len(sentences) <= 16
    assert all(len(sentence) < 1000 and "\n" not in sentence for sentence in sentences)
    assert (None in all_places) == any("not answer" in sentence for sentence in sentences)


def test_a_thousand_ranks() -> None:
    hosts = [f"node{rank // 8}" for rank in range(1000)]
    ended = {rank: replace(computes(rank), rank=rank) for rank in (17, 500, 501)}
    places = {rank: ended.get(rank) or replace(waits(rank, REDUCE), rank=rank) for rank in range(1000)}
    assert explain(places, hosts).sentences == [
        "ranks 17, 500-501 (node2, node62) never reached all_reduce #812 (16 MB, train.py:88); "
        "they were last in train.py:71"
    ]
    everywhere = {
        rank: waits(0, REDUCE) if rank == 0 else replace(computes(rank, f"x.py:{rank % 7}"), rank=rank)
        for rank in range(1000)
    }
    lines = explain(everywhere, hosts).sentences
    assert len(lines) == 4
    assert lines[-1] == "and 4 more of that kind"
    assert len(max(lines, key=len)) < 250
