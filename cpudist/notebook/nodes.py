"""The store of a job, for the rendezvous of its ranks and the failure reports of its nodes' notebooks.

Node 0's notebook serves the store from before the first rank starts until the last attempt has ended. The notebooks
also compare their arguments through it. With the failure reports, a cell can show the exception of another node's rank,
and a node can end ranks that do not notice the failure.
"""

import json
import secrets
import socket
import time
from contextlib import ExitStack, suppress

from cpudist.errors import StartupTimeout, UserError
from cpudist.launchers import InStore
from cpudist.notebook.result import Failure
from cpudist.notebook.settings import Settings
from cpudist.store import Address, Connection, StoreLost, keepalive_timeout
from cpudist.store.process import StoreProcess
from cpudist.waiting import announced, poll

_LOOPBACK = "127.0.0.1"
# Keys of the store: the arguments in node 0's cell, the failure of an attempt, and whether a node has left.
_SETTINGS, _FAILED, _LEFT = "settings", "failed/{}", "left/{}"
_POLL_SECONDS = 0.5
_RETRY_SECONDS = 0.2
_READ_SECONDS = 5.0  # the other nodes may take this long to read the failure


class Nodes:
    """This node's connection to the store, and on node 0 the store itself."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        alone = settings.num_nodes == 1
        self.several = not alone
        self._token = settings.token or (secrets.token_hex() if alone else "")
        self._closing = ExitStack()
        self._polled = 0.0
        quiet = keepalive_timeout(settings.options.limit)
        port = settings.master_port
        if settings.node_rank == 0:
            listening = [_LOOPBACK] if alone else []
            server = StoreProcess(listening, port, self._token.encode(), quiet)
            self._closing.callback(server.close)
            port = server.port
        self._port = port
        # The notebooks have their own key namespace; the ranks' namespaces end in the number of the attempt.
        address = Address((settings.master_addr,), port, self._token.encode(), quiet, f"{settings.job}/nodes")
        try:
            self._join(address)
            self._closing.callback(self._store.close)
            self._compare()
        except BaseException as error:
            self.close()
            if isinstance(error, StartupTimeout):
                raise StartupTimeout(self._unreachable(str(error))) from None
            raise

    def rendezvous(self, attempt: int) -> InStore:
        """Return the store and its key namespace for the ranks of an attempt."""
        return InStore(self._settings.master_addr, self._port, f"{self._settings.job}/{attempt}", self._token)

    def report(self, attempt: int, failure: Failure) -> Failure:
        """Report a failure of an attempt to the other nodes; return the first failure that any node has reported."""
        if not self.several:
            return failure
        try:
            first = self._store.compare_set(_FAILED.format(attempt), b"", failure.to_json().encode()).decode()
        except StoreLost:
            return failure
        return failure if first == failure.to_json() else Failure.from_json(first)

    def failure(self, attempt: int) -> Failure | None:
        """Return an attempt's failure on another node, or None. Ask the store at most twice a second."""
        now = time.monotonic()
        if not self.several or now - self._polled < _POLL_SECONDS:
            return None
        self._polled = now
        try:
            found = self._store.get([_FAILED.format(attempt)])
        except StoreLost:
            why = "cannot be reached any more: its cell has ended, or its host or the link is down"
            return Failure("node 0", why, now)
        return Failure.from_json(found[0].decode()) if found else None

    def leave(self, failed: bool) -> None:
        """Leave the job; after a failure node 0 waits a few seconds until the others have read the report."""
        others = range(1, self._settings.num_nodes)
        with suppress(StoreLost):
            self._store.set({_LEFT.format(self._settings.node_rank): b"1"})
            if failed and self._settings.node_rank == 0:
                self._store.wait_all([_LEFT.format(node) for node in others], _READ_SECONDS)

    def close(self) -> None:
        self._closing.close()

    def _join(self, address: Address) -> None:
        """Connect to the store of node 0's next launch, and check that no other cell has this node's number."""
        timeout, node = self._settings.options.limit, self._settings.node_rank
        deadline = time.monotonic() + timeout

        def first_here() -> bool:
            self._store = store = Connection(address, deadline - time.monotonic())
            with suppress(StoreLost):  # the store of the last launch may be closing
                if store.add(f"arrived/{node}", 1) == 1:
                    return True
                if not store.check([_LEFT.format(node)]):  # this notebook's last launch would have left
                    store.close()
                    why = f"a cell with node_rank={node} has joined the job at {self._where()} already"
                    raise UserError(f"{why}; give each node its own number, or use_port if that is another job")
            store.close()
            return False

        with announced(lambda: f"this cell waits for the cell of node 0 at {self._where()}", timeout):
            joined = poll(first_here, timeout, longest_pause=_RETRY_SECONDS)
        if not joined:
            raise StartupTimeout("only the store of its last launch answers; run the cell there again")

    def _compare(self) -> None:
        """Check that all cells have the same arguments; report a difference to the other nodes."""
        settings, own = self._settings, self._settings.compared
        if settings.node_rank == 0:
            self._store.set({_SETTINGS: json.dumps(own).encode()})
            return
        if not self._store.wait_all([_SETTINGS], settings.options.limit):
            raise StartupTimeout("it does not answer")
        (said,) = self._store.get([_SETTINGS]) or [b"{}"]
        theirs = json.loads(said)
        for name in {**theirs, **own}:
            (first, its_digest), (asked, our_digest) = (which.get(name, ("nothing", "")) for which in (theirs, own))
            if our_digest != its_digest:
                first = f"another {first}" if first == asked else first
                has = f"has {name}={asked} in its cell, and node 0 {first}"
                self.report(0, Failure(f"node {settings.node_rank}", has, time.monotonic(), mistake=True))
                self.leave(failed=False)
                remedy = "run the same call in all of them, except for node_rank"
                raise UserError(f"{name}={asked} in this node's cell, but {first} in node 0's; {remedy}")

    def _where(self) -> str:
        return f"{self._settings.master_addr}:{self._port}"

    def _unreachable(self, why: str) -> str:
        address, limit = self._settings.master_addr, self._settings.options.limit
        if self._settings.node_rank == 0:
            return f"master_addr={address!r} does not lead to this node, {socket.gethostname()}: {why}"
        remedy = f"run it there, and look for a firewall: {why}"
        return f"no cell with node_rank=0 was found at {self._where()} within {limit:g} s; {remedy}"
