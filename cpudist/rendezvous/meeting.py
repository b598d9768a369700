"""One store for all ranks: found over MPI, at an address that the environment gives, or for one process alone."""

from __future__ import annotations

import atexit
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from cpudist.console import first_line
from cpudist.environments import Alone, AtAddress, OverMpi, Placement, Rendezvous
from cpudist.errors import StartupTimeout, UserError
from cpudist.machine.identity import addresses, free_port, node_identity
from cpudist.rendezvous import mpi
from cpudist.waiting import bounded, poll

if TYPE_CHECKING:
    from torch.distributed import Store

_ATTEMPT_SECONDS = 5.0  # for one address to answer


@dataclass(frozen=True)
class Meeting:
    """The store that all ranks share, and where rank 0 serves it."""

    store: Store
    address: str
    port: int


def meet(rendezvous: Rendezvous, placement: Placement, attempt: str, timeout: float) -> Meeting:
    """Connect this rank with the others.

    Args:
        rendezvous: how the ranks find each other, as the environment says.
        placement: which rank this is.
        attempt: the same text on all ranks, another one for every job that may find an earlier one's store.
        timeout: seconds for rank 0 to be reached.

    Raises:
        UserError: MPI and the environment disagree about the world, or the store cannot be opened.
        StartupTimeout: rank 0 cannot be reached in time.
    """
    match rendezvous:
        case OverMpi():
            return _meet_over_mpi(rendezvous, placement, timeout)
        case AtAddress():
            return _meet_at(rendezvous, placement, attempt, timeout)
        case Alone():
            from torch.distributed import HashStore

            return Meeting(HashStore(), "127.0.0.1", free_port())


def _meet_at(address: AtAddress, placement: Placement, attempt: str, timeout: float) -> Meeting:
    from torch.distributed import PrefixStore

    serves = placement.rank == 0 and not address.served
    if not serves:
        _first_reachable([address.host], address.port, timeout)
    try:
        store = _store_at(address.host, address.port, placement.size, serves, timeout)
    except RuntimeError as error:
        raise UserError(
            f"rank {placement.rank} cannot open {address.host}:{address.port} (MASTER_ADDR, MASTER_PORT): "
            f"{first_line(error)}"
        ) from None
    return Meeting(PrefixStore(f"cpudist/{attempt}", store), address.host, address.port)


def _meet_over_mpi(rendezvous: OverMpi, placement: Placement, timeout: float) -> Meeting:
    world = mpi.join(rendezvous, placement, timeout)
    server: Any = None
    offer: tuple[list[str], int] | None = None
    if placement.rank == 0:
        server = _tcp_store("localhost", 0, placement.size, True, timeout)  # the system picks a free port
        offer = (addresses(), server.port)
    with bounded("agreeing on rank 0's address over MPI", timeout):
        candidates, port = world.bcast(offer)
        shared = len(set(world.allgather(node_identity()))) == 1
    if shared:
        candidates = ["127.0.0.1"]
    if server is not None:
        return Meeting(server, candidates[0], port)
    address = _first_reachable(candidates, port, timeout)
    return Meeting(_tcp_store(address, port, placement.size, False, timeout), address, port)


def _tcp_store(host: str, port: int, size: int, serves: bool, timeout: float) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        host,
        port,
        size,
        is_master=serves,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=port != 0,  # as torch's own env:// has it: a script may open the same port again
    )


# The address is the same for every job of a process. A rank that starts the next one may do so before rank 0 does, and
# must not find the store of the last one just going away: so it stays until the process ends.
_store_at = cache(_tcp_store)
atexit.register(_store_at.cache_clear)


def _first_reachable(candidates: list[str], port: int, timeout: float) -> str:
    """The first of rank 0's addresses that answers; a host may have some that lead nowhere from here."""
    answered: list[str] = []

    def one_answers() -> bool:
        for address in candidates:
            seconds = min(_ATTEMPT_SECONDS, timeout)
            with suppress(OSError), socket.create_connection((address, port), timeout=seconds):
                answered.append(address)
                return True
        return False

    if not poll(one_answers, timeout):
        raise StartupTimeout(
            f"rank 0 cannot be reached from {socket.gethostname()} at port {port} of {', '.join(candidates)}; "
            "is there a firewall between the nodes?"
        )
    return answered[0]
