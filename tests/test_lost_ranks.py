"""Which rank was lost first, and the sentence that says so."""

from __future__ import annotations

import pytest

from cpudist.lost_ranks import LostRank, first_killed

OUT_OF_MEMORY = "was killed by SIGKILL (dmesg there tells whether memory ran out)"


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (
            LostRank("ended", 3, "h1"),
            "rank 3 on h1 ended without an error message (killed, out of memory, or crashed?)",
        ),
        (
            LostRank("unreachable", 3, "h1", "last in train.py:88"),
            "rank 3 on h1 cannot be reached any more (host down, or its link?); it was last in train.py:88",
        ),
        (LostRank(9), f"a rank {OUT_OF_MEMORY}"),
        (LostRank(11, host="h1"), "a rank on h1 was killed by SIGSEGV"),
        (LostRank(99, 1), "rank 1 was killed by signal 99"),
    ],
)
def test_the_sentence(lost: LostRank, sentence: str) -> None:
    assert str(lost) == sentence


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
def test_a_launcher_reports_its_own_kills_too(
    killed: list[LostRank], first_ended: dict[str, int | None], first: LostRank | None
) -> None:
    assert first_killed(killed, first_ended) == first
