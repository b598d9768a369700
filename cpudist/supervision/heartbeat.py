"""The thread of each rank that does the job's regular work while the script computes or waits.

Once a second the watch publishes this rank's status (watch.py), `--stall` counts signs of life (stall.py), and
`--checkpoint-on-signal` looks for a signal (training/interruption.py). The thread hears of failures at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cpudist.store import Address, Connection, StoreLost
from cpudist.supervision.rank_status import beat_seconds

Beat = Callable[[Connection | None], None]

_JOIN_SECONDS = 10.0  # for a request to the store


class Heartbeat:
    """Calls functions once a second, from the first `add` until `stop`.

    They get the thread's own connection to the job's store: None in a process without others, and once the store is
    lost. They may raise nothing but `StoreLost`.

    Args:
        ranks: the number of ranks.
        address: the job's store; None in a process without others.
        timeout: seconds to reach the store.

    Attributes:
        seconds: between two beats.
        stopped: set by `stop`.
    """

    def __init__(self, ranks: int, address: Address | None, timeout: float) -> None:
        self.seconds = beat_seconds(ranks)
        self.stopped = threading.Event()
        self._beats: list[Beat] = []
        self._store = None if address is None else Connection(address, timeout)
        self._keys: list[str] = []
        self._alarm: Callable[[Connection], None]
        self._thread = threading.Thread(target=self._run, name="cpudist-heartbeat", daemon=True)

    def add(self, beat: Beat) -> None:
        """Call `beat` from now on."""
        self._beats = [*self._beats, beat]
        if self._thread.ident is None and not self.stopped.is_set():
            self._thread.start()

    def remove(self, beat: Beat) -> None:
        """Call `beat` no more."""
        self._beats = [other for other in self._beats if other != beat]

    def listen(self, keys: list[str], alarm: Callable[[Connection], None]) -> None:
        """Call `alarm`, in the thread, when one of `keys` is in the store."""
        self._alarm, self._keys = alarm, keys

    def stop_listening(self) -> None:
        """Call no alarm from now on."""
        self._keys = []

    def stop(self) -> None:
        """Stop the thread. If it is ending this process, this call does not return."""
        self.stopped.set()
        if self._store is not None:
            self._store.interrupt()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connection in a forked child; otherwise the store would not notice the end of this rank."""
        if self._store is not None:
            self._store.close()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                for beat in self._beats:
                    beat(self._store)
                if self._store is None or not self._keys:
                    self.stopped.wait(self.seconds)
                elif self._store.wait_any(self._keys, self.seconds) and self._keys:
                    self._alarm(self._store)
            except StoreLost:
                if not self.stopped.is_set():
                    self._store = None
