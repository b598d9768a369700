"""Exchanging values through a store, and who is missing when it fails."""

import json
import math
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from clocks import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Serving
from torch.distributed import TCPStore

from cpudist import waiting
from cpudist.errors import StartupTimeout, UserError
from cpudist.launchers import Alone, AtAddress, Placement
from cpudist.rendezvous import all_gather, connect, connecting, gather
from cpudist.store import Address, Connection, keepalive_timeout
from cpudist.store import client as client_module
from cpudist.store.client import StoreLost
from cpudist.store.process import StoreProcess
from cpudist.store.torch_store import JobStore
from cpudist.topology.identity import free_port

SECONDS = timedelta(seconds=10)


@pytest.fixture
def agent() -> TCPStore:
    """A store as torchrun's agents serve it."""
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=SECONDS, wait_for_workers=False)


def client(agent: TCPStore) -> TCPStore:
    return TCPStore("127.0.0.1", agent.port, is_master=False, timeout=SECONDS, wait_for_workers=False)


def test_every_rank_gets_every_value_in_rank_order_again_and_again(agent: TCPStore) -> None:
    def gather_twice(rank: int) -> list[list[str]]:
        store = client(agent)
        return [all_gather(store, rank, 4, key, f"{key}{rank}" if rank else "", 10, what="testing") for key in "ab"]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(gather_twice, range(4))] == [[["", "a1", "a2", "a3"], ["", "b1", "b2", "b3"]]] * 4


def test_missing_ranks_are_named_within_the_timeout(agent: TCPStore, clock: Clock) -> None:
    """Rank 0 tells the others, which wait longer for it."""
    client(agent).set("k/1", "value")  # rank 1 has arrived
    begin = clock.now
    for rank, store in ((0, agent), (1, client(agent))):
        with pytest.raises(StartupTimeout, match=r"starting: .* ranks 2, 3 of 4"):
            all_gather(store, rank, 4, "k", "value", 1.5, "starting")
        assert 1.5 <= clock.now - begin <= 1.7


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
        all_gather(store, 0, 2, "k", "0", 0.5, "testing", members=members)
    assert capsys.readouterr().err == f"cpudist: testing: waiting for {name}, for at most 0.5 s\n"
    with pytest.raises(StartupTimeout):
        all_gather(store, 0, 2, "k", "0", 0.5, "testing")
    assert capsys.readouterr().err == "", "another rank has said it"
    store.close()


@pytest.mark.parametrize("rank", [1, 2])
def test_one_rank_reports_that_rank_0_is_not_there_yet(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", 0.0)
    address = AtAddress("127.0.0.1", free_port())
    with pytest.raises(StartupTimeout):
        connect(address, Placement(rank, 3), "0", timeout=0.5)
    line = f"cpudist: rank 1: waiting for rank 0 at 127.0.0.1:{address.port}, for at most 0.5 s\n"
    assert capsys.readouterr().err == (line if rank == 1 else "")


@pytest.mark.parametrize(("name_known", "seconds"), [(True, 8), (False, 300)])
def test_an_unknown_name(name_known: bool, seconds: float, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A pod's name appears with the pod; the names of Slurm's nodes are there before the job."""

    def unknown(*_: object, **__: object) -> socket.socket:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    clock.drives(client_module)
    monkeypatch.setattr(socket, "create_connection", unknown)
    begin = clock.now
    with pytest.raises(StartupTimeout, match=r"n1 \(Name or service not known\); add the name"):
        connect(AtAddress("n1", 15217, name_known=name_known), Placement(1, 2), "0", timeout=300)
    assert seconds <= clock.now - begin <= seconds + 1


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
        (0, 22, [], r"ranks 1, .*, 20, … of 22"),
        (0, 2, [], "rank 1 of 2"),
        (1, 3, [0], "still waiting for rank 2 of 3"),  # so does rank 0
        (1, 3, [], "still waiting for ranks 0, 2 of 3"),
        (1, 3, [0, 2], "still waiting for rank 0 of 3"),
    ],
)
def test_who_is_missing(rank: int, size: int, arrived: list[int], named: str, agent: TCPStore, clock: Clock) -> None:
    for other in arrived:
        agent.set(f"k/{other}", "=there")
    with pytest.raises(StartupTimeout, match=named):
        all_gather(client(agent), rank, size, "k", "value", 0.5)


def test_progress_is_made_while_waiting(agent: TCPStore, clock: Clock) -> None:
    """Another rank may need it to arrive."""
    assert all_gather(agent, 0, 2, "k", "0", 10, meanwhile=lambda: agent.set("k/1", "=1")) == ["0", "1"]


def test_a_lost_store_is_an_error_that_names_the_purpose() -> None:
    class Lost(JobStore):
        def set(self, key: str, value: str | bytes) -> None:
            raise StoreLost("closed")

    with pytest.raises(StartupTimeout, match="testing: lost the store of rank 0: closed"):
        all_gather(Lost(Address((), 0, b"", 5), 5), 0, 2, "k", "value", 5, what="testing")


def test_the_jobs_own_store_waits_without_polling(server: Serving) -> None:
    stores = [JobStore(server.address(), 20) for _ in range(2)]
    other = threading.Timer(0.2, lambda: all_gather(stores[1], 1, 2, "k", "1", 20))
    other.start()
    assert all_gather(stores[0], 0, 2, "k", "0", 20) == ["0", "1"]
    other.join()
    with pytest.raises(StartupTimeout, match="rank 1 of 2"):
        all_gather(stores[0], 0, 2, "never", "0", 0.1)
    for store in stores:
        store.close()


def test_a_single_process_meets_itself() -> None:
    alone = connect(Alone(), Placement(0, 1), "test", timeout=5)
    assert all_gather(alone.store, 0, 1, "key", "value", 5, what="testing") == ["value"]


@pytest.mark.job
def test_another_jobs_rank_is_not_taken_for_ours() -> None:
    """Two jobs with the same MASTER_PORT and no token: the second one's rank 1 finds the first one's store."""
    address = AtAddress("127.0.0.1", free_port())
    first = connect(address, Placement(0, 2), "0", timeout=5, interface="lo")
    assert connecting._server_at(address, "lo").port == address.port, "the one that has started"
    connect(address, Placement(1, 2), "0", timeout=5)
    with pytest.raises(UserError, match=r"rank 1 is in the job at .* already: another job uses this port"):
        connect(address, Placement(1, 2), "0", timeout=5)
    first.close()


@pytest.mark.job
def test_a_rank_that_is_refused_pauses_ever_longer(agent: TCPStore, clock: Clock) -> None:
    """Under torchrun, whose agent's store still has the address of the last attempt."""
    address = AtAddress("127.0.0.1", agent.port, served=True)
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
def test_whoever_reads_the_agents_store_needs_the_token_of_the_user(agent: TCPStore) -> None:
    """torchrun's agents serve that store without any authentication."""
    address = AtAddress("localhost", agent.port, served=True, token="the user's")
    first = connect(address, Placement(0, 2, node_rank=0, node_count=1), "0", timeout=20)
    offer = json.loads(client(agent).get("cpudist/0"))
    assert (offer["hosts"], len(offer["token"])) == (["127.0.0.1"], 64), "all ranks are on one host"
    for token in (bytes.fromhex(offer["token"]), b"the user's", b""):
        with pytest.raises(StartupTimeout, match="another job"):
            Connection(Address(("127.0.0.1",), offer["port"], token, 5), 0.1)
    with pytest.raises(UserError):
        connect(replace(address, token=""), Placement(1, 2, node_rank=0, node_count=1), "0", timeout=1)
    second = connect(address, Placement(1, 2, node_rank=0, node_count=1), "0", timeout=20)
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    assert (second.host, second.port) == ("localhost", agent.port), "MASTER_ADDR and MASTER_PORT stay the agent's"
    second.close(), first.close()


@pytest.mark.job
def test_an_address_of_another_version_is_an_error_in_time(agent: TCPStore, clock: Clock) -> None:
    client(agent).set("cpudist/0", '{"hosts": ["h0"], "port": "x"}')
    with pytest.raises(UserError, match="rank 1 cannot reach the others"):
        connect(AtAddress("127.0.0.1", agent.port, served=True), Placement(1, 2), "0", timeout=30)


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
