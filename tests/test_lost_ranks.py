"""Which rank was lost first, and the sentence that says so."""

import pytest
from recorded import recorded

from cpudist.lost_ranks import LostRank, first_killed


def test_the_sentences() -> None:
    losses = [
        LostRank("ended", 3, "h1"),
        LostRank("unreachable", 3, "h1", "last in train.py:88"),
        LostRank(9),
        LostRank(11, host="h1"),
        LostRank(99, 1),
    ]
    assert [str(lost) for lost in losses] == recorded("lost ranks")


@pytest.mark.parametrize(
    ("killed", "first_ended", "first"),
    [
        ([], {"h1": 1}, None),
        ([LostRank(9, 0, "h0"), LostRank(9, 1, "h0")], {"h0": 1}, LostRank(9, 1, "h0")),
        ([LostRank(9, 0, "h0"), LostRank(9, 1, "h1")], {"h0": 0, "h1": 1}, LostRank(9)),
        ([LostRank(9, 0, "h0"), LostRank(11, 1, "h1")], {"h0": 0, "h1": 1}, LostRank(11, 1, "h1")),
        ([LostRank(9, host="h1")], {"h1": 1}, LostRank(9, 1, "h1")),
        ([LostRank(9, host="h1")], {}, LostRank(9, host="h1")),
    ],
    ids=["none", "one host", "several hosts", "another signal", "rank from the host", "unknown rank"],
)
def test_who_was_killed(killed: list[LostRank], first_ended: dict[str, int | None], first: LostRank | None) -> None:
    assert first_killed(killed, first_ended) == first
