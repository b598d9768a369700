"""One store for all ranks: found over MPI, at an address that the environment gives, or for one process alone.

The store is the job's own (server.py). Rank 0 serves it; MPI, or the store that a launcher keeps, is needed for one
thing alone: to tell the others where it is, and the token that proves it. Where rank 0 itself has to serve the address
that the environment gives, nobody could tell a token: there it is CPUDIST_TOKEN, or none. What is told in a launcher's
store, anybody who reaches it can read: CPUDIST_TOKEN, where it is set, is mixed into it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from cpudist.console import first_line
from cpudist.environments import Alone, AtAddress, InStore, OverMpi, Placement, Rendezvous
from cpudist.errors import UserError
from cpudist.machine.identity import addresses, free_port, node_identity
from cpudist.rendezvous import mpi
from cpudist.rendezvous.connection import Address
from cpudist.rendezvous.process import StoreProcess
from cpudist.waiting import bounded

if TYPE_CHECKING:
    from torch.distributed import Store

_LOOPBACK = "127.0.0.1"
_LONGEST_SILENCE = 30.0
_AGAIN_SECONDS = 2.0  # after which who finds nobody looks whether there is a new address


@dataclass(frozen=True)
class Meeting:
    """Where the ranks have met.

    Attributes:
        store: the store that all ranks share.
        place: where it is served; None where this process is alone.
        host: rank 0's, as this rank reaches it.
        port: a port of that host that is free for the job's scripts and libraries: their MASTER_PORT.
        server: the store's process, on the rank that has started it for this job.
    """

    store: Store
    place: Address | None
    host: str
    port: int
    server: StoreProcess | None = None

    def close(self) -> None:
        """Let go of the store."""
        if self.server is not None:
            self.server.close()


@dataclass(frozen=True)
class _Offer:
    """What rank 0 tells the others."""

    hosts: list[str]
    port: int
    token: str = field(repr=False)
    free_port: int


def meet(
    rendezvous: Rendezvous, placement: Placement, attempt: str, timeout: float, interface: str | None = None
) -> Meeting:
    """Connect this rank with the others.

    Args:
        rendezvous: how the ranks find each other, as the environment says.
        placement: which rank this is.
        attempt: the same text on all ranks, another one for every job that may find an earlier one's store.
        timeout: seconds for rank 0 to be reached.
        interface: the network interface of rank 0's host over which the others reach it; None: any.

    Raises:
        UserError: MPI and the environment disagree about the world, or the store cannot be served.
        StartupTimeout: rank 0 cannot be reached in time.
    """
    match rendezvous:
        case OverMpi():
            return _meet_over_mpi(rendezvous, placement, timeout, interface)
        case AtAddress(served=True):
            return _meet_by_agent(rendezvous, placement, attempt, timeout, interface)
        case AtAddress():
            return _meet_at(rendezvous, placement, attempt, timeout, interface)
        case InStore():
            job = f"{rendezvous.job}/{attempt}"
            place = Address((rendezvous.host,), rendezvous.port, rendezvous.token.encode(), silence(timeout), job)
            return _meet_in(place, placement, timeout)
        case Alone():
            from torch.distributed import HashStore

            return Meeting(HashStore(), None, _LOOPBACK, free_port())


def _meet_over_mpi(rendezvous: OverMpi, placement: Placement, timeout: float, interface: str | None) -> Meeting:
    world = mpi.join(rendezvous, placement, timeout)
    with bounded("agreeing on rank 0's address over MPI", timeout):
        one_machine = len(set(world.allgather(node_identity()))) == 1
    server, offer = _serve(placement, one_machine, timeout, interface)
    with bounded("agreeing on rank 0's address over MPI", timeout):
        offer = world.bcast(offer)
    return _accept(offer, server, timeout, timeout)


def _meet_by_agent(
    address: AtAddress, placement: Placement, attempt: str, timeout: float, interface: str | None
) -> Meeting:
    """Meet where the store of the launcher's agent says.

    It outlives a restart of the ranks, of which two agents need not count alike: so there is one key for all attempts,
    and who finds nobody there, or somebody who has met this rank before, looks again.
    """
    from torch.distributed import TCPStore

    key, agents_token = f"cpudist/{attempt}", address.token.encode()
    server, offer = _serve(placement, placement.node_count == 1, timeout, interface, agents_token)
    deadline = time.monotonic() + timeout
    try:
        agent = TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=timeout))
        if offer is not None:
            agent.set(key, json.dumps(asdict(offer)))
        while True:
            left = deadline - time.monotonic()
            try:
                found = _Offer(**json.loads(agent.get(key)))
                meeting = _accept(found, server, min(left, _AGAIN_SECONDS), timeout, agents_token)
                _arrive(meeting, placement)
                return replace(meeting, host=address.host, port=address.port)
            except UserError:
                if left < _AGAIN_SECONDS:
                    raise
    except RuntimeError as error:
        raise UserError(
            f"rank {placement.rank} cannot meet the others at {address.host}:{address.port} (MASTER_ADDR, MASTER_PORT):"
            f" {first_line(error)}"
        ) from None


def _meet_at(address: AtAddress, placement: Placement, attempt: str, timeout: float, interface: str | None) -> Meeting:
    """Meet where rank 0 has to serve."""
    if placement.rank == 0:
        _server_at(address, interface)
    place = Address((address.host,), address.port, address.token.encode(), silence(timeout), attempt)
    return _meet_in(place, placement, timeout)


def _meet_in(place: Address, placement: Placement, timeout: float) -> Meeting:
    """Meet in the job's store, whose place all ranks know."""
    meeting = _connect(place, timeout, timeout)
    _arrive(meeting, placement)
    if placement.rank == 0:
        meeting.store.set("free_port", str(free_port()))
    return replace(meeting, host=place.hosts[0], port=int(meeting.store.get("free_port")))


# The address is the same for every job of a process. A rank that starts the next one may do so before rank 0 does, and
# must not find the store of the last one just going away: so its process stays until this one ends.
@cache
def _server_at(address: AtAddress, interface: str | None) -> StoreProcess:
    own = addresses(interface) if interface else _own_addresses(address.host)
    return StoreProcess(own, address.port, address.token.encode(), _LONGEST_SILENCE)


def _own_addresses(host: str) -> list[str]:
    """Those of this machine's addresses that `host` stands for; none where others may know another one by that name."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    if host in ("localhost", _LOOPBACK, "::1"):
        return sorted(found)
    # A machine's own name often leads it to its loopback interface, which others do not reach.
    return sorted(found & set(addresses()) - {_LOOPBACK})


def _arrive(meeting: Meeting, placement: Placement) -> None:
    """Tell the store that this rank is there, once in its life.

    Raises:
        UserError: the store knows such a rank already, so it is another job's.
    """
    if meeting.store.add(f"arrived/{placement.rank}", 1) != 1:
        raise UserError(
            f"rank {placement.rank} is in the job at {meeting.host}:{meeting.port} already: another job uses this port,"
            " or this rank was started again while the others went on; choose another MASTER_PORT, or start all anew"
        )


def _serve(
    placement: Placement, one_machine: bool, timeout: float, interface: str | None, secret: bytes = b""
) -> tuple[StoreProcess | None, Any]:
    """On rank 0 the store's process and what to tell the others of it; `secret` is what only the job's ranks know."""
    if placement.rank != 0:
        return None, None
    own = addresses(interface)
    token = secrets.token_bytes(32)
    listening = [_LOOPBACK] if one_machine else own if interface else []
    server = StoreProcess(listening, 0, _mixed(token, secret), silence(timeout))
    return server, _Offer([_LOOPBACK] if one_machine else own, server.port, token.hex(), free_port())


def _mixed(token: bytes, secret: bytes) -> bytes:
    """The job's token where what was told in the open is worth nothing without `secret`."""
    return hmac.digest(secret, token, "sha256") if secret else token


def _accept(
    offer: _Offer, server: StoreProcess | None, patience: float, timeout: float, secret: bytes = b""
) -> Meeting:
    token = _mixed(bytes.fromhex(offer.token), secret)
    place = Address(tuple(offer.hosts), offer.port, token, silence(timeout))
    return replace(_connect(place, patience, timeout), port=offer.free_port, server=server)


def _connect(place: Address, patience: float, timeout: float) -> Meeting:
    """Reach the store within `patience` seconds; it then waits for keys for up to `timeout`."""
    from cpudist.rendezvous.store import JobStore

    store = JobStore(place, patience)
    host = store.host
    store.set_timeout(timedelta(seconds=timeout))
    return Meeting(store, replace(place, hosts=(host,)), host, place.port)


def silence(timeout: float) -> float:
    """How long the network may keep a rank from the store: less than a collective may take, at most half a minute."""
    return min(_LONGEST_SILENCE, max(5.0, timeout / 2))
