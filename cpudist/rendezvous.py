"""How the ranks of a job find each other: one store that all of them reach, within a time limit.

Under an MPI launcher rank 0 tells its address and a free port over MPI, so nobody sets MASTER_ADDR; elsewhere torch's
``env://``, Slurm's node list, or nothing at all for a single process. Nothing here knows about backends.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cpudist import mpi
from cpudist.errors import StartupTimeout, UserError
from cpudist.launchers.base import Launcher, Placement
from cpudist.launchers.slurm import Slurm

if TYPE_CHECKING:
    from torch.distributed import Store


@dataclass(frozen=True)
class Meeting:
    """The store that all ranks share, and where rank 0 serves it."""

    store: Store
    address: str
    port: int


def node_identity() -> str:
    """A text that ranks have in common exactly when they can share memory.

    The host name alone does not tell: two machines may have the same, and containers on one machine cannot share
    memory. So the running kernel, the IPC namespace and the device of /dev/shm count too.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    shared_memory = os.stat("/dev/shm").st_dev if os.path.isdir("/dev/shm") else 0
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/ipc').st_ino}/{shared_memory}"


def meet(launcher: Launcher, placement: Placement, env: Mapping[str, str], timeout: float) -> Meeting:
    """Connect this rank with the others.

    Raises:
        UserError: MPI and the launcher disagree about the world, or a variable is missing.
        StartupTimeout: rank 0 cannot be reached within ``timeout`` seconds.
    """
    way = launcher.rendezvous(env)
    if way == "mpi":
        return _meet_over_mpi(launcher, placement, timeout)
    if way == "single":
        from torch.distributed import HashStore

        return Meeting(HashStore(), "127.0.0.1", _free_port())
    if way == "slurm":
        address, port = Slurm.master(env)
    else:
        address, port = env.get("MASTER_ADDR", ""), _port(env.get("MASTER_PORT", ""))
        if not address:
            raise UserError("MASTER_ADDR is not set; start the job with torchrun, or set it to rank 0's host")
    return Meeting(_env_store(placement, address, port, timeout), address, port)


def _port(text: str) -> int:
    if not text.isdigit():
        raise UserError(f"MASTER_PORT={text!r} is not a port number; set it to a free port of rank 0's host")
    return int(text)


def exchange(
    store: Store,
    rank: int,
    size: int,
    key: str,
    value: str,
    timeout: float,
    what: str = "meeting",
    meanwhile: Callable[[], object] = lambda: None,
) -> list[str]:
    """Publish this rank's value under ``key`` and return every rank's, in rank order.

    A key serves once per store. ``meanwhile`` is called again and again while ranks are missing.

    Raises:
        StartupTimeout: some ranks have not published theirs after ``timeout`` seconds; the message names them.
    """
    keys = [f"{key}/{other}" for other in range(size)]
    # A store drops values that are empty.
    store.set(keys[rank], f"={value}")
    deadline = time.monotonic() + timeout
    pause = 0.001
    missing = set(range(size)) - {rank}
    try:
        # Not store.wait: it prints torch's own warnings, with C++ frames, when the time is over.
        while missing:
            missing = {other for other in missing if not store.check([keys[other]])}
            if missing and time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(missing)))
                raise StartupTimeout(
                    f"{what}: after {timeout:g} s still waiting for rank{'s' * (len(missing) > 1)} {names} of {size}; "
                    "look at their output, or give more time with --timeout"
                )
            if missing:
                meanwhile()
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
        return [text.decode()[1:] for text in _get_all(store, keys)]
    except RuntimeError as error:  # torch's DistError
        raise StartupTimeout(f"{what}: lost the store of rank 0: {_first_line(error)}") from None


def _get_all(store: Store, keys: list[str]) -> list[bytes]:
    try:
        return list(store.multi_get(keys))
    except RuntimeError:  # not every kind of store has it
        return [store.get(key) for key in keys]


def _env_store(placement: Placement, address: str, port: int, timeout: float) -> Store:
    from torch.distributed import PrefixStore

    # torchrun's agent serves the store itself; then no rank does.
    serves = placement.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not serves:
        _first_reachable([address], port, timeout)
    try:
        store = _tcp_store(placement, address, port, timeout, serves=serves)
    except RuntimeError as error:
        raise UserError(
            f"rank {placement.rank} cannot open {address}:{port} (MASTER_ADDR, MASTER_PORT): {_first_line(error)}"
        ) from None
    # The agent's store outlives a restart of the ranks: every attempt has keys of its own.
    return PrefixStore(f"cpudist/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _meet_over_mpi(launcher: Launcher, placement: Placement, timeout: float) -> Meeting:
    world = mpi.join(launcher, placement, timeout)
    server: Any = None
    offer: tuple[list[str], int] | None = None
    if placement.rank == 0:
        server = _tcp_store(placement, "localhost", 0, timeout, serves=True)  # the system picks a free port
        offer = (mpi.addresses(), server.port)
    with mpi.bounded("agreeing on rank 0's address over MPI", timeout):
        candidates, port = world.bcast(offer)
        shared = len(set(world.allgather(node_identity()))) == 1
    if shared:
        candidates = ["127.0.0.1"]
    if server is not None:
        return Meeting(server, candidates[0], port)
    address = _first_reachable(candidates, port, timeout)
    return Meeting(_tcp_store(placement, address, port, timeout, serves=False), address, port)


def _tcp_store(placement: Placement, address: str, port: int, timeout: float, *, serves: bool) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(
        address,
        port,
        placement.size,
        is_master=serves,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=port != 0,  # as torch's own env:// has it: a script may open the same port again
    )


def _first_reachable(candidates: list[str], port: int, timeout: float) -> str:
    """The first of rank 0's addresses that answers; a host may have some that lead nowhere from here."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        for address in candidates:
            with suppress(OSError), socket.create_connection((address, port), timeout=min(5.0, timeout)):
                return address
        time.sleep(0.2)
    raise StartupTimeout(
        f"rank 0 cannot be reached from {socket.gethostname()} at port {port} of {', '.join(candidates)}; "
        "is there a firewall between the nodes?"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
