"""How ranks find their store, with MPI and without; that of real launchers: tests/job/test_job.py."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from clocks import Clock
from serving import TOKEN, Serving
from torch.distributed import TCPStore

from cpudist import waiting
from cpudist.errors import StartupTimeout, UserError
from cpudist.launchers import AtAddress, InStore, OverMpi, Placement
from cpudist.processes import rank_or_child
from cpudist.rendezvous import connect, connecting, mpi
from cpudist.store import Address, Connection
from cpudist.store import client as client_module
from cpudist.topology.identity import addresses, free_port

FIRST, SECOND = (Placement(rank, 2, node_rank=0, node_count=1) for rank in range(2))


def test_jobs_and_attempts_in_one_store_do_not_meet(server: Serving) -> None:
    """As on a notebook's server, which outlives them."""
    places = [("1", "0"), ("1", "1"), ("2", "0")]
    found = []
    for job, attempt in places:
        where = InStore("127.0.0.1", server.port, job, TOKEN.decode())
        found.append(connect(where, Placement(0, 2), attempt, 5))
        other = connect(where, Placement(1, 2), attempt, 5)
        other.store.set("key", f"{job} {attempt}")
        assert (other.host, other.port, other.server) == ("127.0.0.1", found[-1].port, None)
        other.close()
    assert [one.store.get("key").decode().split() for one in found] == [[*place] for place in places]
    assert len({one.port for one in found}) == 3, "for the scripts of each"
    with pytest.raises(UserError):
        connect(InStore("127.0.0.1", server.port, "3", "another"), Placement(0, 2), "0", 0.1)
    for one in found:
        one.close()


def test_rank_0_listens_where_the_others_are_told_that_it_is() -> None:
    assert connecting._own_addresses("127.0.0.1") == ["127.0.0.1"]
    assert set(connecting._own_addresses("localhost")) <= {"127.0.0.1", "::1"}
    assert connecting._own_addresses("192.0.2.7") == [], "an address of the documentation: another machine's"
    for address in set(addresses()) - {"127.0.0.1"}:
        assert connecting._own_addresses(address) == [address]


class Ranks:
    """MPI's world for threads, one for each rank."""

    def __init__(self, size: int) -> None:
        self._values: list[Any] = [None] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def join(self, _rendezvous: OverMpi, placement: Placement, _timeout: float) -> SimpleNamespace:
        def allgather(value: Any) -> list[Any]:
            self._values[placement.rank] = value
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()
            return values

        return SimpleNamespace(allgather=allgather, bcast=lambda value: allgather(value)[0])


@pytest.mark.job
@pytest.mark.parametrize(("machines", "interface"), [(1, None), (2, None), (2, "lo")])
def test_rank_0_tells_its_address(machines: int, interface: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = iter(["a", "b"] if machines == 2 else ["a", "a"])
    monkeypatch.setattr(mpi, "join", Ranks(2).join)
    monkeypatch.setattr(connecting, "node_identity", lambda: next(machine))
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(
            lambda rank: connect(OverMpi(), Placement(rank, 2), "0", 20, interface=interface), range(2)
        )
    assert first.server is not None
    assert second.server is None
    hosts = ["127.0.0.1"] if machines == 1 else addresses(interface)
    assert first.address == second.address
    assert first.host in hosts
    assert first.port == second.port != first.server.port > 1023
    assert len(first.address.token) == 32
    everywhere = machines == 2 and interface is None
    connections = psutil.Process(first.server._process.pid).net_connections()
    listening = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert listening & {"::", "0.0.0.0"} if everywhere else listening == {*hosts}
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    second.close(), first.close()


def test_a_process_that_a_rank_has_started_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_or_child, "started_by_rank", lambda: True)
    with pytest.raises(UserError, match="cannot be that rank too"):
        mpi.join(OverMpi(), Placement(0, 1), 5)


def test_one_rank_reports_a_late_rank_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", 0.0)
    address = AtAddress("127.0.0.1", free_port())
    for rank in (1, 2):
        with pytest.raises(StartupTimeout):
            connect(address, Placement(rank, 3), "0", timeout=0.5)
    line = f"cpudist: rank 1: waiting for rank 0 at 127.0.0.1:{address.port}, for at most 0.5 s\n"
    assert capsys.readouterr().err == line


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


@pytest.mark.job
def test_another_jobs_rank_is_not_taken_for_ours() -> None:
    """Two jobs with the same MASTER_PORT and no token: the second one's rank 1 finds the first one's store."""
    address = AtAddress("127.0.0.1", free_port())
    first = connect(address, Placement(0, 2), "0", timeout=5, interface="lo")
    assert connecting._server_at(address, "lo").port == address.port, "the one that has started"
    connect(address, Placement(1, 2), "0", timeout=5)
    with pytest.raises(UserError, match=r"rank 1 is in the job at .* already; choose another MASTER_PORT"):
        connect(address, Placement(1, 2), "0", timeout=5)
    first.close()


@pytest.mark.job
def test_whoever_reads_the_agents_store_needs_the_token_of_the_user(agent: TCPStore) -> None:
    """torchrun's agents serve that store without any authentication."""
    address = AtAddress("localhost", agent.port, served=True, token="the user's")
    first = connect(address, FIRST, "0", timeout=20)
    offer = json.loads(agent.get("cpudist/0"))
    assert (offer["hosts"], len(offer["token"])) == (["127.0.0.1"], 64), "all ranks are on one host"
    for token in (bytes.fromhex(offer["token"]), b"the user's", b""):
        with pytest.raises(StartupTimeout, match="another job"):
            Connection(Address(("127.0.0.1",), offer["port"], token, 5), 0.1)
    with pytest.raises(UserError):
        connect(replace(address, token=""), SECOND, "0", timeout=1)
    second = connect(address, SECOND, "0", timeout=20)
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    assert (second.host, second.port) == ("localhost", agent.port), "MASTER_ADDR and MASTER_PORT stay the agent's"
    second.close(), first.close()
