"""The server of the job's store in a thread of the tests, as `cpudist.store.server` runs it in a process."""

import asyncio
import os
import threading

from cpudist.store.client import Address, Connection
from cpudist.store.server import Server, listen

TOKEN = b"the token"
KEEPALIVE_SECONDS = 8.0


class Serving:
    """A server and its end.

    Attributes:
        reports: what the server has reported at its end.
    """

    def __init__(self) -> None:
        listening = listen(["127.0.0.1"], 0)
        reading, self._owner = os.pipe()
        self.port: int = listening[0].getsockname()[1]
        self.server = Server(TOKEN, listening, KEEPALIVE_SECONDS)
        self.reports: list[str] = []
        self._thread = threading.Thread(target=self._run, args=(reading,), daemon=True)
        self._thread.start()

    def address(self, token: bytes = TOKEN, job: str = "") -> Address:
        return Address(("127.0.0.1",), self.port, token, KEEPALIVE_SECONDS, job)

    def connect(self, job: str = "") -> Connection:
        return Connection(self.address(job=job), 5)

    def lose_owner(self) -> None:
        """Do what the end of rank 0's process does."""
        if self._owner >= 0:
            os.close(self._owner)
        self._owner = -1

    def ended(self, seconds: float = 30) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, reading: int) -> None:
        self.reports += asyncio.run(self.server.run(reading, lambda: None))
        os.close(reading)
