"""Connect each rank to the job's store, at an address from MPI, from torchrun's store or from the environment.

The store is the job's own (cpudist/store/); rank 0 serves it, or node 0's notebook. MPI and torchrun's store carry only
its address and the token that authenticates the ranks. With an address from the environment no token can be sent: it is
CPUDIST_TOKEN, under Slurm a digest of the user's secret, or empty. Anyone can read torchrun's store, so CPUDIST_TOKEN,
if set, is mixed into the token there.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from cpudist import typed_json
from cpudist.console import first_line
from cpudist.errors import UserError
from cpudist.launchers import Alone, AtAddress, InStore, OverMpi, Placement, RendezvousMethod
from cpudist.rendezvous import mpi
from cpudist.store.client import LONGEST_KEEPALIVE, Address, StoreLost, keepalive_timeout
from cpudist.store.process import StoreProcess
from cpudist.topology.identity import addresses, free_port, node_identity, resolved
from cpudist.waiting import announced, bounded, poll

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.store.torch_store import JobStore

_LOOPBACK = "127.0.0.1"
_STARTED_SECONDS = 60.0  # Longest time of each step once all ranks have started MPI.
_NAME_SECONDS = 8.0  # Longest wait for a name server that should know the host's name already (under Slurm).
_RETRY_SECONDS = 2.0  # Longest attempt and longest pause before a rank reads the store's address again.


@dataclass(frozen=True)
class Rendezvous:
    """The store that all ranks share, and its address."""

    store: Store
    address: Address | None  # the address of its server; None if this process is alone
    host: str  # the address at which this rank reaches rank 0's host
    port: int  # a free port of that host, used as MASTER_PORT by the job's scripts and libraries
    server: StoreProcess | None = None  # the store's process; None if this rank has not started one for this job

    def close(self) -> None:
        """Close this rank's connections with the store, and its server if this rank has started it."""
        if self.address is not None:
            cast("JobStore", self.store).close()
        if self.server is not None:
            self.server.close()


@dataclass(frozen=True)
class _Offer:
    """Address and token of rank 0's store, for the other ranks."""

    hosts: list[str]
    port: int
    token: str = field(repr=False)
    free_port: int


def connect(
    rendezvous: RendezvousMethod, placement: Placement, attempt: str, timeout: float, interface: str | None = None
) -> Rendezvous:
    """Connect this rank with the job's store.

    Args:
        attempt: a text that is the same on all ranks; jobs that may reach the same store must have different ones.
        timeout: limit of each step in seconds.
        interface: the network interface of rank 0's host for connections of the others; None: any.

    Raises:
        UserError: MPI and the environment disagree about rank or size, or the store cannot be served.
        StartupTimeout: rank 0 cannot be reached in time.
    """
    match rendezvous:
        case OverMpi():
            return _connect_over_mpi(rendezvous, placement, timeout, interface)
        case AtAddress(served=True):
            return _connect_by_agent(rendezvous, placement, attempt, timeout, interface)
        case AtAddress():
            if placement.rank == 0:
                _server_at(rendezvous, interface)
            return _connect_in(rendezvous, attempt, placement, timeout)
        case InStore():
            return _connect_in(rendezvous, f"{rendezvous.job}/{attempt}", placement, timeout)
        case Alone():
            from torch.distributed import HashStore

            return Rendezvous(HashStore(), None, _LOOPBACK, free_port())


def _connect_over_mpi(rendezvous: OverMpi, placement: Placement, timeout: float, interface: str | None) -> Rendezvous:
    world = mpi.join(rendezvous, placement, timeout)
    what, short = "agreeing on rank 0's address over MPI", min(timeout, _STARTED_SECONDS)
    with bounded(what, short, announces=placement.rank == 0):
        one_machine = len(set(world.allgather(node_identity()))) == 1
    server, offer = _serve(placement, one_machine, timeout, interface)
    with bounded(what, short, announces=placement.rank == 0):
        offer = world.bcast(offer)
    return _accept(offer, server, short, timeout)


def _connect_by_agent(
    address: AtAddress, placement: Placement, attempt: str, timeout: float, interface: str | None
) -> Rendezvous:
    """Connect to the store whose address is in the store of the launcher's agent.

    The agent's store outlives restarts of the ranks, and two agents may have different restart numbers. So all restarts
    use one key; a rank that cannot reach the address, or is already registered there, reads the key again.
    """
    from torch.distributed import TCPStore

    key, agents_token = f"cpudist/{attempt}", address.token.encode()
    server, offer = _serve(placement, placement.node_count == 1, timeout, interface, agents_token)
    deadline = time.monotonic() + timeout
    result: Rendezvous | Exception | None = None

    def has_joined() -> bool:
        nonlocal result
        try:
            found = typed_json.read(_Offer, typed_json.last_line(agent.get(key).decode()))
            result = _accept(found, server, min(deadline - time.monotonic(), _RETRY_SECONDS), timeout, agents_token)
            _arrive(result, placement)
        except (UserError, StoreLost, ValueError) as error:
            result = error
        return isinstance(result, Rendezvous)

    try:
        agent = TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=timeout))
        if offer is not None:
            agent.set(key, json.dumps(asdict(offer)))
        with announced(lambda: _waiting_for_rank_0(address, placement), timeout):
            poll(has_joined, deadline - time.monotonic(), longest_pause=_RETRY_SECONDS)
        if not isinstance(result, Rendezvous):
            raise cast("Exception", result)
        return replace(result, host=address.host, port=address.port)
    except (RuntimeError, ValueError) as error:
        where = f"{address.host}:{address.port} (MASTER_ADDR, MASTER_PORT)"
        why = f"rank {placement.rank} cannot reach the others at {where}: {first_line(error)}"
        raise UserError(f"{why}; look at rank 0's output and at the firewall") from None


def _connect_in(where: AtAddress | InStore, job: str, placement: Placement, timeout: float) -> Rendezvous:
    """Connect to the store at an address that all ranks have; `job` is its key namespace."""
    names = _NAME_SECONDS if isinstance(where, AtAddress) and where.name_known else math.inf
    store_address = Address((where.host,), where.port, where.token.encode(), keepalive_timeout(timeout), job, names)
    with announced(lambda: _waiting_for_rank_0(where, placement), timeout):
        joined = _reach(store_address, timeout, timeout)
    _arrive(joined, placement)
    if placement.rank == 0:
        joined.store.set("free_port", str(free_port()))
    return replace(joined, host=where.host, port=int(joined.store.get("free_port")))


# All jobs of a process use the same address, and a rank may start the next job before rank 0 does. It must not reach a
# store that is shutting down. So the store's process runs until this process ends.
@cache
def _server_at(address: AtAddress, interface: str | None) -> StoreProcess:
    own = addresses(interface) if interface else _own_addresses(address.host)
    return StoreProcess(own, address.port, address.token.encode(), LONGEST_KEEPALIVE)


def _waiting_for_rank_0(where: AtAddress | InStore, placement: Placement) -> str:
    """Return the line that reports a long wait; empty on all ranks but rank 1."""
    return f"rank 1: waiting for rank 0 at {where.host}:{where.port}" if placement.rank == 1 else ""


def _own_addresses(host: str) -> list[str]:
    """Return this machine's addresses to which `host` resolves; none if other hosts may resolve it differently."""
    found = resolved(host)
    if host in ("localhost", _LOOPBACK, "::1"):
        return sorted(found)
    # A machine often resolves its own name to the loopback interface, which other machines cannot reach.
    return sorted(found & set(addresses()) - {_LOOPBACK})


def _arrive(joined: Rendezvous, placement: Placement) -> None:
    """Register this rank in the store; `UserError` if it is registered already, probably by another job."""
    if joined.store.add(f"arrived/{placement.rank}", 1) != 1:
        cast("JobStore", joined.store).close()
        why = f"rank {placement.rank} is in the job at {joined.host}:{joined.port} already"
        raise UserError(f"{why}; choose another MASTER_PORT if that is another job, or start all ranks again")


def _serve(
    placement: Placement, one_machine: bool, timeout: float, interface: str | None, secret: bytes = b""
) -> tuple[StoreProcess | None, Any]:
    """Start the store on rank 0; return its process and offer (None elsewhere). Only the job's ranks have `secret`."""
    if placement.rank != 0:
        return None, None
    own = addresses(interface)
    token = secrets.token_bytes(32)
    listening = [_LOOPBACK] if one_machine else own if interface else []
    server = StoreProcess(listening, 0, _mixed(token, secret), keepalive_timeout(timeout))
    return server, _Offer([_LOOPBACK] if one_machine else own, server.port, token.hex(), free_port())


def _mixed(token: bytes, secret: bytes) -> bytes:
    """Return the job's token, derived from a token that anyone can read and a secret of the job's ranks."""
    return hmac.digest(secret, token, "sha256") if secret else token


def _accept(
    offer: _Offer, server: StoreProcess | None, patience: float, timeout: float, secret: bytes = b""
) -> Rendezvous:
    token = _mixed(bytes.fromhex(offer.token), secret)
    store_address = Address(tuple(offer.hosts), offer.port, token, keepalive_timeout(timeout))
    return replace(_reach(store_address, patience, timeout), port=offer.free_port, server=server)


def _reach(store_address: Address, patience: float, timeout: float) -> Rendezvous:
    """Connect to the store within `patience` seconds; later waits for keys take at most `timeout` seconds."""
    from cpudist.store.torch_store import JobStore

    store = JobStore(store_address, patience)
    host = store.host
    store.set_timeout(timedelta(seconds=timeout))
    return Rendezvous(store, replace(store_address, hosts=(host,)), host, store_address.port)
