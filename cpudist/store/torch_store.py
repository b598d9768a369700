"""The job's store as a `torch.distributed.Store`, for torch's process groups."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from weakref import WeakSet

from torch.distributed import DistStoreError, Store

from cpudist.store.client import Address, Connection, StoreLost


class JobStore(Store):
    """A `torch.distributed.Store` whose keys are in the job's server.

    Its methods are those of `torch.distributed.Store`; they raise `StoreLost` when the server does not answer. Every
    thread has a connection of its own, so a thread that waits for a key does not block the others.

    `timeout` is in seconds: to reach the server, and to wait for a key in calls without a timeout of their own.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        super().__init__()
        self._address = address
        self._timeout = timeout
        self._of_thread = threading.local()
        self._connections: WeakSet[Connection] = WeakSet()  # connections of all threads and clones
        self._closed = False

    @property
    def host(self) -> str:
        """The address at which this rank reaches the server."""
        return self._connection().host

    def clock(self) -> int:
        return self._connection().clock()

    def set(self, key: str, value: str | bytes) -> None:
        self._connection().set({key: _bytes(value)})

    def get(self, key: str) -> bytes:
        """Wait for a key and return its value."""
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        return self._connection().add(key, amount)

    def append(self, key: str, value: str | bytes) -> None:
        self._connection().append(key, _bytes(value))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._connection().compare_set(key, _bytes(expected), _bytes(desired))

    def delete_key(self, key: str) -> bool:
        return self._connection().delete(key)

    def num_keys(self) -> int:
        return self._connection().count()

    def check(self, keys: list[str]) -> bool:
        return self._connection().check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        if not self._connection().wait_all(keys, seconds):
            raise DistStoreError(f"wait timeout after {seconds:g} s, keys: {', '.join(keys)}")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.wait(keys)
        values = self._connection().get(keys)
        if values is None:
            raise DistStoreError(f"a key was deleted while it was read: {', '.join(keys)}")
        return values

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        self._connection().set({key: _bytes(value) for key, value in zip(keys, values, strict=True)})

    def has_extended_api(self) -> bool:
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout)

    def clone(self) -> JobStore:
        clone = JobStore(self._address, self._timeout)
        clone._connections = self._connections
        return clone

    def close(self) -> None:
        """Close the connections of all threads and of all clones; the store must not be used afterwards."""
        self._closed = True
        for connection in list(self._connections):
            connection.close()

    def _connection(self) -> Connection:
        """Return this thread's connection; connect at first use, in a forked child, and after a lost connection."""
        if self._closed:
            raise StoreLost("the job is over; call cpudist.init() for a new one")
        connection: Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None or connection.closed or self._of_thread.process != os.getpid():
            connection = Connection(self._address, self._timeout)
            self._connections.add(connection)
            self._of_thread.connection, self._of_thread.process = connection, os.getpid()
        return connection


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
