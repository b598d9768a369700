"""The job's store as torch's process groups want it."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

from torch.distributed import DistStoreError, Store

from cpudist.rendezvous.connection import Address, Connection


class JobStore(Store):
    """A `torch.distributed.Store` in the job's server.

    Every thread has a connection of its own, so none is held up by another one that waits.

    Args:
        address: the server's.
        timeout: seconds to wait for a key where nothing else is said.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        super().__init__()
        self._address = address
        self._timeout = timeout
        self._of_thread = threading.local()

    @property
    def host(self) -> str:
        """The server's address, of those that it has, that this rank reaches."""
        return self._connection().host

    def set(self, key: str, value: str | bytes) -> None:
        self._connection().set({key: _bytes(value)})

    def get(self, key: str) -> bytes:
        """The key's value, which is waited for."""
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
            raise DistStoreError(f"a key went while it was asked for: {', '.join(keys)}")
        return values

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        self._connection().set({key: _bytes(value) for key, value in zip(keys, values, strict=True)})

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout)

    def clone(self) -> JobStore:
        return JobStore(self._address, self._timeout)

    def _connection(self) -> Connection:
        """This thread's connection, made when it is first needed, and again in a forked child or after a loss."""
        connection: Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None or connection.closed or self._of_thread.process != os.getpid():
            connection = Connection(self._address, self._timeout)
            self._of_thread.connection, self._of_thread.process = connection, os.getpid()
        return connection


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
