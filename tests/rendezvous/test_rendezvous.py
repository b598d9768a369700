"""Exchanging values through a store, and who is missing when it fails."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
from clocks import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import TCPStore

from cpudist.errors import StartupTimeout, UserError
from cpudist.launchers import Alone, AtAddress, Placement
from cpudist.rendezvous import all_gather, connect
from cpudist.store import Address, Connection, keepalive_timeout
from cpudist.store.process import StoreProcess
from cpudist.topology.identity import free_port

SECONDS = timedelta(seconds=10)


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=SECONDS, wait_for_workers=False)


def client(server: TCPStore) -> TCPStore:
    return TCPStore("127.0.0.1", server.port, is_master=False, timeout=SECONDS, wait_for_workers=False)


def test_every_rank_gets_every_value_in_rank_order_again_and_again(server: TCPStore) -> None:
    size = 4
    got: dict[int, list[list[str]]] = {}

    def run(rank: int) -> None:
        store = client(server)
        got[rank] = [
            all_gather(store, rank, size, key, f"{key}{rank}" if rank else "", 10, what="testing") for key in "ab"
        ]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    expected = [["", "a1", "a2", "a3"], ["", "b1", "b2", "b3"]]
    assert got == dict.fromkeys(range(size), expected)


def test_missing_ranks_are_named_within_the_timeout(server: TCPStore) -> None:
    client(server).set("k/1", "value")  # rank 1 has arrived
    start = time.monotonic()
    with pytest.raises(StartupTimeout) as error:
        all_gather(server, 0, 4, "k", "value", 1.5, "starting")
    assert time.monotonic() - start < 5
    assert "ranks 2, 3" in str(error.value)
    assert "starting" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_single_process_meets_itself() -> None:
    alone = connect(Alone(), Placement(0, 1), "test", timeout=5)
    assert all_gather(alone.store, 0, 1, "key", "value", 5, what="testing") == ["value"]


def test_a_rank_that_comes_earlier_than_rank_0_does_not_blame_it(
    server: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[all_gather.__module__], "_VERDICT_SECONDS", 0.0)
    client(server).set("k/0", "=there")  # rank 0 has arrived, and still waits for rank 2
    with pytest.raises(StartupTimeout, match="still waiting for rank 2 of 3"):
        all_gather(client(server), 1, 3, "k", "value", 0.5)


@pytest.mark.job
def test_another_jobs_rank_is_not_taken_for_ours() -> None:
    """Two jobs with the same MASTER_PORT and no token: the second one's rank 1 finds the first one's store."""
    address = AtAddress("127.0.0.1", free_port())
    first = connect(address, Placement(0, 2), "0", timeout=5)
    connect(address, Placement(1, 2), "0", timeout=5)
    with pytest.raises(UserError, match=r"rank 1 is in the job at .* already: another job uses this port"):
        connect(address, Placement(1, 2), "0", timeout=5)
    first.close()


@pytest.mark.job
def test_a_rank_that_is_refused_pauses_ever_longer(server: TCPStore, clock: Clock) -> None:
    """Under torchrun, whose agent's store still has the address of the last attempt."""
    address = AtAddress("127.0.0.1", server.port, served=True)
    first = connect(address, Placement(0, 2, node_rank=0, node_count=1), "0", timeout=30)
    second = connect(address, Placement(1, 2, node_rank=0, node_count=1), "0", timeout=30)
    begin = clock.now
    with pytest.raises(UserError, match=r"rank 1 is in the job at .* already"):
        connect(address, Placement(1, 2, node_rank=0, node_count=1), "0", timeout=300)
    assert 300 <= clock.now - begin <= 303
    assert 10 < first.store.add("arrived/1", 0) < 170
    second.close()
    first.close()


@pytest.mark.job
def test_whoever_reads_the_agents_store_needs_the_token_of_the_user(server: TCPStore) -> None:
    """torchrun's agents serve that store without any authentication."""
    address = AtAddress("127.0.0.1", server.port, served=True, token="the user's")
    first = connect(address, Placement(0, 2, node_rank=0, node_count=1), "0", timeout=20)
    offer = json.loads(client(server).get("cpudist/0"))
    for token in (bytes.fromhex(offer["token"]), b"the user's", b""):
        with pytest.raises(StartupTimeout, match="another job"):
            Connection(Address(("127.0.0.1",), offer["port"], token, 5), 0.1)
    with pytest.raises(UserError):
        connect(replace(address, token=""), Placement(1, 2, node_rank=0, node_count=1), "0", timeout=1)
    second = connect(address, Placement(1, 2, node_rank=0, node_count=1), "0", timeout=20)
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    assert (second.host, second.port) == ("127.0.0.1", server.port), "MASTER_ADDR and MASTER_PORT stay the agent's"
    second.close(), first.close()


@pytest.mark.job
def test_an_address_of_another_version_is_an_error_in_time(server: TCPStore, clock: Clock) -> None:
    client(server).set("cpudist/0", '{"hosts": ["h0"], "port": "x"}')
    with pytest.raises(UserError, match="rank 1 cannot reach the others"):
        connect(AtAddress("127.0.0.1", server.port, served=True), Placement(1, 2), "0", timeout=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(max_value=5.0), st.sampled_from(["127.0.0.1", "..", "\udcff", "a" * 70]))
def test_whatever_the_timeout_it_says_that_rank_0_cannot_be_reached(clock: Clock, timeout: float, host: str) -> None:
    with pytest.raises(StartupTimeout, match="rank 0 cannot be reached"):
        Connection(Address((host,), free_port(), b"", 5), timeout)


@pytest.mark.job
def test_whatever_the_timeout_a_store_that_answers_is_reached(clock: Clock) -> None:
    store = StoreProcess(["127.0.0.1"], 0, b"", 5)
    for timeout in (-1e9, -0.5, 0.0, 1e-9, math.nan, 1e9, 1e300, math.inf):
        one = Connection(Address(("127.0.0.1",), store.port, b"", keepalive_timeout(timeout)), timeout)
        one.set({"there": b"1"})
        assert one.wait_all(["there"], timeout)
        assert timeout > 1 or not one.wait_any(["missing"], timeout)
        one.close()
    store.close()
