"""Exchanging values through a store, and who is missing when it fails."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from clocks import Clock
from serving import Serving
from torch.distributed import TCPStore

from cpudist import waiting
from cpudist.errors import StartupTimeout
from cpudist.rendezvous import StoreGroup, gather
from cpudist.store.torch_store import JobStore


@pytest.mark.parametrize("own", [False, True], ids=["torch's store", "the job's store"])
def test_every_rank_gets_every_value_in_rank_order_again_and_again(agent: TCPStore, server: Serving, own: bool) -> None:
    stores = [JobStore(server.address(), 20) if own else agent.clone() for _ in range(4)]

    def gather_twice(rank: int) -> list[list[str]]:
        mine = StoreGroup(stores[rank], rank, 4, 10)
        return [mine.all_gather(key, f"{key}{rank}" if rank else "", "testing") for key in "ab"]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(gather_twice, range(4))] == [[["", "a1", "a2", "a3"], ["", "b1", "b2", "b3"]]] * 4
    for store in stores * own:
        store.close()


@pytest.mark.parametrize(
    ("members", "name"), [((), "rank 1 (h1, last in train.py:9) of 2"), ((5, 0), "rank 0 (h0) of 2")]
)
def test_a_long_wait_is_said_once_with_the_missing_rank(
    members: tuple[int, ...],
    name: str,
    server: Serving,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(gather, "whereabouts", lambda: {0: "h0", 1: "h1, last in train.py:9"})
    store = JobStore(server.address(), 20)
    with pytest.raises(StartupTimeout, match=re.escape(f"waiting for {name}")):
        StoreGroup(store, 0, 2, 0.5, members).all_gather("k", "0", "testing")
    assert capsys.readouterr().err == f"cpudist: testing: waiting for {name}, for at most 0.5 s\n"
    with pytest.raises(StartupTimeout):
        StoreGroup(store, 0, 2, 0.5).all_gather("k", "0", "testing")
    assert capsys.readouterr().err == "", "another rank has said it"
    store.close()


@pytest.mark.parametrize(
    ("silent", "members", "names"),
    [([1], (), "rank 1 (h1, last in train.py:9)"), ([1, 2], (0, 2), "rank 2"), ([1], (0, 2), "the other ranks")],
)
def test_a_wait_of_ranks_that_have_come_names_who_does_not_answer(
    silent: list[int], members: tuple[int, ...], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather, "whereabouts", lambda: {1: "h1, last in train.py:9"})
    monkeypatch.setattr(gather, "silent", lambda: silent)
    assert re.split("[:,] (?:no|which)", gather.awaited(members))[0] == names


@pytest.mark.parametrize(
    ("rank", "size", "arrived", "named"),
    [
        (0, 4, [1], "ranks 2, 3 of 4"),
        (0, 22, [], r"ranks 1, .*, 20, … of 22"),
        (1, 3, [0], "rank 2 of 3"),  # rank 0 still waits, too
        (1, 3, [0, 2], "rank 0 of 3"),
    ],
)
def test_missing_ranks_are_named_within_the_timeout(
    rank: int, size: int, arrived: list[int], named: str, agent: TCPStore, clock: Clock
) -> None:
    """Rank 0 tells the others, which wait longer for it."""
    for other in arrived:
        agent.set(f"k/{other}", "=there")
    begin = clock.now
    for one in range(rank, 2):
        with pytest.raises(StartupTimeout, match=f"starting: .* still waiting for {named}"):
            StoreGroup(agent, one, size, 1.5).all_gather("k", "value", "starting")
    assert 0 <= clock.now - begin - 1.5 - gather._VERDICT_SECONDS * rank <= 0.2


def test_a_lost_store_is_an_error_that_names_the_purpose(server: Serving) -> None:
    store = JobStore(server.address(), 5)
    store.close()
    with pytest.raises(StartupTimeout, match=r"testing: lost the store of rank 0: .*the job is over"):
        StoreGroup(store, 0, 2, 5).all_gather("k", "value", "testing")
