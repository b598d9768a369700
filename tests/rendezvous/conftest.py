"""A launcher's store, for these tests."""

from datetime import timedelta

import pytest
from torch.distributed import TCPStore


@pytest.fixture
def agent() -> TCPStore:
    """A store as torchrun's agents serve it."""
    return TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10), wait_for_workers=False)
