"""What Intel MPI says at its start of the libfabric provider that it has opened for messages between hosts.

There is no function that tells: it loads all providers, opens one, and says which on rank 0's standard output, if it is
asked to. It opens none where all ranks share a machine.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_ASKS = "I_MPI_DEBUG"
_LINE = b"[0] MPI startup(): "
_NAMES_PROVIDER = _LINE + b"libfabric provider: "

_provider: str | None = None


def provider() -> str | None:
    """The provider that MPI has opened in this process; None where that is none, or not known."""
    return _provider


@contextmanager
def heard() -> Iterator[None]:
    """Ask Intel MPI, which starts within the block, and keep its answer from the screen; anything else is passed on.

    Where the user has asked it already, the answer is theirs. Other MPIs do not know the question.
    """
    if _ASKS in os.environ:
        yield
        return
    c = ctypes.CDLL(None)
    sys.stdout.flush()
    c.fflush(None)
    with tempfile.TemporaryFile() as said:
        stdout = os.dup(1)
        os.dup2(said.fileno(), 1)
        os.environ[_ASKS] = "1"
        try:
            yield
        finally:
            del os.environ[_ASKS]
            c.fflush(None)  # MPI writes through C's buffers
            os.dup2(stdout, 1)
            os.close(stdout)
            said.seek(0)
            _take_in(said.read())


def _take_in(text: bytes) -> None:
    global _provider
    for line in text.splitlines(keepends=True):
        if line.startswith(_NAMES_PROVIDER):
            _provider = line.removeprefix(_NAMES_PROVIDER).decode(errors="replace").strip()
        elif not line.startswith(_LINE):
            os.write(1, line)
