"""Pass the output of a child process on as it comes, in a thread of its own."""

import fcntl
import os
import select
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

_PIECE_BYTES = 1 << 16
_LOOK_SECONDS = 0.2  # Interval at which the thread checks whether to end.


class Relay:
    """Passes on one stream of a child process while this process does other work.

    A write blocks while our reader (such as `less`) does not read, or while the terminal is stopped; it blocks only
    the thread.

    Args:
        stream: the reading end of a pipe, which the thread closes.
        write: writes a whole piece; gets an empty piece at the end of the stream. The stream is read to its end even if
            `write` raises.
    """

    def __init__(self, stream: IO[bytes], write: Callable[[bytes], object]) -> None:
        self.writing = False  # whether the thread reads or writes a piece
        self.error: Exception | None = None  # the first error of `write`; some output is then lost
        self._stream = stream
        self._write = write
        self._ending = False
        self._thread = threading.Thread(target=self._pass_on, name="cpudist-relay", daemon=True)
        self._thread.start()

    def finish(self, seconds: float, stop: Callable[[], object] = lambda: False) -> None:
        """Wait until all output has been passed on, then end the thread.

        Args:
            seconds: limit of the wait for processes that keep the other end open. The wait for our reader has no limit.
            stop: ends the wait for our reader once it returns a true value.
        """
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and (time.monotonic() < deadline or not (self._has_passed_all() or stop())):
            self._thread.join(_LOOK_SECONDS)
        self._ending = True

    def _has_passed_all(self) -> bool:
        with suppress(OSError, ValueError):  # the thread has closed the pipe
            if any(fcntl.ioctl(self._stream, termios.FIONREAD, bytes(4))):  # the number of bytes that it holds
                return False
        return not self.writing  # checked last: the thread may have just emptied the pipe

    def _pass_on(self) -> None:
        poll = select.poll()
        poll.register(self._stream, select.POLLIN)
        with self._stream:
            while not self._ending:
                if poll.poll(1000 * _LOOK_SECONDS):
                    self.writing = True
                    piece = os.read(self._stream.fileno(), _PIECE_BYTES)
                    try:
                        self._write(piece)
                    except (OSError, ValueError) as error:
                        self.error = self.error or error
                    self.writing = False
                    if not piece:
                        return
