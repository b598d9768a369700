"""Which rank was lost first, and the sentence that says so."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import recorded

from cpudist.lost_ranks import JOB_ID, LostRank, first_killed, tell_launch, told


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


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a job of `cpudist launch` that this process belongs to."""
    job = uuid.uuid4().hex
    monkeypatch.setenv(JOB_ID, job)
    yield job
    _file(job).unlink(missing_ok=True)


def _file(job: str) -> Path:
    return Path(f"/tmp/cpudist-failure-{job}.json")


def test_the_first_report_of_a_host_is_read_once(job: str) -> None:
    for ranks in ([], [3, 1], [2]):
        tell_launch(ranks)
    assert _file(job).stat().st_mode & 0o777 == 0o600
    assert [told(job), told(job)] == [[3, 1], []]


def test_a_report_of_another_user_is_not_believed(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_launch([1])
    if os.getuid() == 0:
        os.chown(_file(job), 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert told(job) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ranks": ["one"]}', '{"ranks": null}', '{"rank": 1}'])
def test_a_report_that_is_none_is_not_believed(job: str, content: str) -> None:
    _file(job).write_text(content)
    assert told(job) == []


def test_a_link_in_place_of_a_report_is_not_followed(job: str, tmp_path: Path) -> None:
    (tmp_path / "report").write_text('{"ranks": [1]}')
    _file(job).symlink_to(tmp_path / "report")
    tell_launch([2])
    assert told(job) == []
    assert (tmp_path / "report").read_text() == '{"ranks": [1]}'
