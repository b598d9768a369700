"""How ranks find their store, with MPI and without; that of real launchers: tests/job/test_job.py."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from serving import TOKEN, Serving

from cpudist import rank_process
from cpudist.errors import UserError
from cpudist.launchers import InStore, OverMpi, Placement
from cpudist.rendezvous import Rendezvous, connect, connecting, mpi
from cpudist.topology.identity import addresses

INTEL = SimpleNamespace(size=2, rank=1)


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
    with pytest.raises(UserError, match=r"rank 0 is in the job at .* already"):
        connect(where, Placement(0, 2), "0", 5)
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
    assert _listening(first) & {"::", "0.0.0.0"} if everywhere else _listening(first) == {*hosts}
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    second.close(), first.close()


def _listening(one: Rendezvous) -> set[str]:
    """Return the addresses at which the store's process listens."""
    import psutil

    connections = psutil.Process(one.server._process.pid).net_connections()
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


def test_mpi_must_have_made_the_launchers_world(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(COMM_WORLD=INTEL, Get_library_version=lambda: "MPI 1.0\0\nbuilt today")
    monkeypatch.setattr(mpi, "initialise", lambda *_, **__: library)
    assert mpi.join(OverMpi(), Placement(1, 2), 5) is INTEL
    for placement in (Placement(0, 2), Placement(1, 3)):
        with pytest.raises(UserError, match=r"MPI says rank 1 of 2: MPI 1\.0 is not"):
            mpi.join(OverMpi(), placement, 5)


@pytest.mark.parametrize(
    ("imported", "given", "used"),
    [(False, None, "launcher's"), (False, "user's", "user's"), (True, None, None)],
)
def test_mpi4pys_library(imported: bool, given: str | None, used: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace())
    monkeypatch.setenv("MPI4PY_LIBMPI", given or "")
    if given is None:
        monkeypatch.delenv("MPI4PY_LIBMPI")
    if not imported:
        monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    mpi._choose_library("launcher's")
    assert mpi.os.environ.get("MPI4PY_LIBMPI") == used


def test_a_process_that_a_rank_has_started_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_process, "started_by_rank", lambda: True)
    with pytest.raises(UserError, match="cannot be that rank too"):
        mpi.join(OverMpi(), Placement(0, 1), 5)
