"""Clients of a store's server in a thread."""

from collections.abc import Iterator

import pytest
from serving import Serving

from cpudist.store.client import Connection
from cpudist.store.torch_store import JobStore


@pytest.fixture
def client(server: Serving) -> Iterator[Connection]:
    connection = server.connect()
    yield connection
    connection.close()


@pytest.fixture
def store(server: Serving) -> Iterator[JobStore]:
    """The same store as torch has it."""
    store = JobStore(server.address(), timeout=5)
    yield store
    store.close()
