"""The store in which a job's ranks meet, and its nodes' notebooks.

Node 0's notebook serves it, before any rank starts and through all attempts. Through it the notebooks see that they are
started alike, and tell each other of a failure: one cell then shows what another node's rank has failed with, and a
node whose own ranks could not know of it ends them.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from contextlib import suppress

from cpudist.environments import InStore
from cpudist.errors import StartupTimeout, UserError
from cpudist.notebook.outcome import Failure
from cpudist.notebook.settings import Settings
from cpudist.rendezvous import Address, Connection, StoreLost, StoreProcess, silence

_LOOPBACK = "127.0.0.1"
_SETTINGS = "settings"  # what node 0's cell asks for
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 0.2
_READ_SECONDS = 5.0  # what node 0 gives the others to read why the job has failed


class Nodes:
    """This node's part in the meeting, until `close`.

    Attributes:
        several: whether there are others.

    Args:
        settings: of this node's launch.

    Raises:
        UserError: the store cannot be served or reached, or another node's cell says something else.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        alone = settings.num_nodes == 1
        self.several = not alone
        self._token = settings.token or (secrets.token_hex() if alone else "")
        self._server: StoreProcess | None = None
        self._looked = 0.0
        quiet = silence(settings.timeout)
        port = settings.master_port
        if settings.node_rank == 0:
            listening = [_LOOPBACK] if alone else []
            self._server = StoreProcess(listening, port, self._token.encode(), quiet)
            port = self._server.port
        self._port = port
        # Apart from the ranks' keys, which have an attempt in their names.
        address = Address((settings.master_addr,), port, self._token.encode(), quiet, f"{settings.job}/nodes")
        try:
            self._arrive(address)
            self._compare()
        except BaseException as error:
            self.close()
            if isinstance(error, StartupTimeout):
                raise StartupTimeout(self._unreachable(str(error))) from None
            raise

    def meeting(self, attempt: int) -> InStore:
        """Where the ranks of an attempt meet."""
        return InStore(self._settings.master_addr, self._port, f"{self._settings.job}/{attempt}", self._token)

    def tell(self, attempt: int, failure: Failure) -> Failure:
        """Tell the other nodes how this attempt has failed; returns what was told first, which counts."""
        if not self.several:
            return failure
        try:
            first = self._store.compare_set(_failed(attempt), b"", failure.to_json().encode()).decode()
        except StoreLost:
            return failure
        return failure if first == failure.to_json() else Failure.from_json(first)

    def look(self, attempt: int) -> Failure | None:
        """How this attempt has failed on another node, if it has; asks at most twice in a second."""
        now = time.monotonic()
        if not self.several or now - self._looked < _LOOK_SECONDS:
            return None
        self._looked = now
        try:
            found = self._store.get([_failed(attempt)])
        except StoreLost:
            return Failure(
                "node 0", "cannot be reached any more: its cell has ended, its host or the link is down", now
            )
        return Failure.from_json(found[0].decode()) if found else None

    def leave(self, failed: bool) -> None:
        """Part from the other nodes; after a failure node 0 waits until they have read of it."""
        others = range(1, self._settings.num_nodes)
        with suppress(StoreLost):
            self._store.set({_left(self._settings.node_rank): b"1"})
            if failed and self._server is not None:
                self._store.wait_all([_left(node) for node in others], _READ_SECONDS)

    def close(self) -> None:
        """Let go of the store."""
        if hasattr(self, "_store"):
            self._store.close()
        if self._server is not None:
            self._server.close()

    def _arrive(self, address: Address) -> None:
        """Connect, and see that each node's cell is there once.

        One that has left again was this notebook's last launch: node 0 will be there with the next one.
        """
        deadline = time.monotonic() + self._settings.timeout
        node = self._settings.node_rank
        while True:
            self._store = Connection(address, max(deadline - time.monotonic(), 0.0))
            with suppress(StoreLost):  # it was just closing
                if self._store.add(f"arrived/{node}", 1) == 1:
                    return
                if not self._store.check([_left(node)]):
                    raise UserError(
                        f"a cell with node_rank={node} has joined the job at {self._where()} already; give each node a"
                        " number of its own, or another master_port if that is another job"
                    )
            self._store.close()
            time.sleep(_AGAIN_SECONDS)

    def _compare(self) -> None:
        """See that all cells ask for the same; the others hear of it where they do not."""
        settings = self._settings
        own = {
            "function": settings.function,
            "num_nodes": settings.num_nodes,
            "num_processes": settings.num_processes,
            "backend": settings.backend,
            "mixed_precision": settings.mixed_precision,
            "max_restarts": settings.max_restarts,
        }
        if settings.node_rank == 0:
            self._store.set({_SETTINGS: json.dumps(own).encode()})
            return
        if not self._store.wait_all([_SETTINGS], settings.timeout):
            raise StartupTimeout("it does not answer")
        (said,) = self._store.get([_SETTINGS]) or [b"{}"]
        for name, first in json.loads(said).items():
            asked = own.get(name)
            if asked != first:
                has = f"has {name}={asked!r} in its cell, and node 0 {first!r}"
                self.tell(0, Failure(f"node {settings.node_rank}", has, time.monotonic(), mistake=True))
                self.leave(failed=False)
                raise UserError(
                    f"{name}={asked!r} in this node's cell, but {first!r} in node 0's; run the same call in all of"
                    " them, but for node_rank"
                )

    def _where(self) -> str:
        return f"{self._settings.master_addr}:{self._port}"

    def _unreachable(self, why: str) -> str:
        if self._settings.node_rank == 0:
            return (
                f"master_addr={self._settings.master_addr!r} does not lead to this node, {socket.gethostname()}: {why}"
            )
        return (
            f"no cell with node_rank=0 was found at {self._where()} within {self._settings.timeout:g} s; run it there,"
            f" and look for a firewall: {why}"
        )


def _failed(attempt: int) -> str:
    return f"failed/{attempt}"


def _left(node: int) -> str:
    return f"left/{node}"
