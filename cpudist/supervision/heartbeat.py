"""Background thread of each rank: it calls functions while the script computes or waits.

At each heartbeat the watch publishes this rank's status (watch.py), `--stall` counts signs of life (stall.py),
`--checkpoint-on-signal` polls for a signal (interruption.py), and observers are called. In between the thread waits in
the store for news of failures, so it learns of them at once.

Functions that this thread calls take no lock that a thread of the script can hold for long; they read numbers that the
script's threads have stored. Otherwise a rank that waits for a late rank could neither report it nor learn of failures.
Output and files may block, so `console.say` and `console.in_time` limit the wait for them.
"""

import threading
from collections.abc import Callable

from cpudist.console import say
from cpudist.store import Address, Connection, StoreLost
from cpudist.supervision.rank_status import beat_seconds

Beat = Callable[[Connection | None], None]

_MISSED = 4  # A rank does not answer if its status is older than so many heartbeats and as many seconds.
_JOIN_SECONDS = 10.0  # Longest wait for the thread, which may be in a request to the store.


class Heartbeat:
    """Calls functions every `seconds`, from the first `add` until `stop`.

    The functions get the thread's own connection to the job's store; None in a job of one process and after the store
    is lost. If a function raises, the thread reports its first exception and still calls all functions.

    Args:
        ranks: the number of ranks.
        address: the address of the job's store; None in a job of one process.
        timeout: seconds to reach the store.
    """

    def __init__(self, ranks: int, address: Address | None, timeout: float) -> None:
        self.seconds = beat_seconds(ranks)  # the time between two calls
        self.answer_seconds = _MISSED * max(1.0, self.seconds)  # a rank whose last status is older does not answer
        self.stopped = threading.Event()  # set by `stop`
        self._beats: list[Beat] = []
        self._reported: set[Beat] = set()  # functions that have raised
        self._store = None if address is None else Connection(address, timeout)
        self._keys: list[str] = []
        self._alarm: Callable[[Connection], None]
        self._thread = threading.Thread(target=self._run, name="cpudist-heartbeat", daemon=True)

    def add(self, beat: Beat) -> None:
        self._beats = [*self._beats, beat]
        if self._thread.ident is None and not self.stopped.is_set():
            self._thread.start()

    def remove(self, beat: Beat) -> None:
        self._beats = [other for other in self._beats if other != beat]

    def listen(self, keys: list[str], alarm: Callable[[Connection], None]) -> None:
        """Call `alarm`, in the thread, when one of `keys` is in the store."""
        self._alarm, self._keys = alarm, keys

    def on_silence(self, report: Callable[[], object]) -> None:
        """Call `report` when the store does not answer for long."""
        if self._store is not None:
            self._store.on_silence = report

    def stop_listening(self) -> None:
        self._keys = []

    def stop(self) -> None:
        """Stop the thread. If it is ending this process, this call does not return."""
        self.stopped.set()
        store = self._store  # a local copy, since the thread sets the attribute to None
        if store is not None:
            store.interrupt()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connection in a forked child; otherwise the store would not notice the end of this rank."""
        store = self._store
        if store is not None:
            store.close()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                for beat in self._beats:
                    self._call(beat)
                keys = self._keys  # a local copy, since the main thread clears the attribute
                if self._store is None or not keys:
                    self.stopped.wait(self.seconds)
                elif self._store.wait_any(keys, self.seconds) and self._keys:
                    self._alarm(self._store)
            except StoreLost:
                if not self.stopped.is_set():
                    self._store = None

    def _call(self, beat: Beat) -> None:
        try:
            beat(self._store)
        except StoreLost:
            raise
        except Exception as error:  # noqa: BLE001 - the other functions are still needed
            if beat not in self._reported:
                self._reported.add(beat)
                name = getattr(beat, "__qualname__", "a function")
                say(f"warning: {name} has failed in the heartbeat's thread, which goes on: {error!r}")
