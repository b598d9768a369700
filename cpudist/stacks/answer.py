"""The rank's side: a thread that says where the rank is, to `cpudist stacks` or, on a signal, on standard error."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import selectors
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable

from cpudist.stacks.address import SIGNAL, Address

_CLIENT_SECONDS = 5.0  # for whoever asks to take the answer
_PAUSE_SECONDS = 0.1  # without a further byte: the stacks are complete
_PIPE_BYTES = 1 << 20  # holds what faulthandler writes at most (100 threads of 100 frames), so that it never waits


class Answers:
    """Answers for this rank from its creation until `stop`.

    Args:
        job: a text that all ranks of the job have in common, such as the address where they met.
        rank, size: this rank's place in the job.
        who: how a heading names it: "rank 3 on h1".
        where: says in a few words where the rank is; called by the thread.

    Raises:
        OSError: there is no such socket to be had, such as for a name that another user of this machine has taken.
    """

    def __init__(self, job: str, rank: int, size: int, who: str, where: Callable[[], str]) -> None:
        self._who, self._where = f"{who} (process {os.getpid()})", where
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)  # the signal's handler must not wait for us
        with contextlib.suppress(OSError):  # a user's pipes are limited; 64 KB are enough for most
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._socket = socket.socket(socket.AF_UNIX)
        self._stopping, self._stop = socket.socketpair()
        self._closed = False
        try:
            self._socket.bind(Address(job, rank, size, self._reader).socket_name())
            self._socket.listen()
        except OSError:
            self.close()
            raise
        faulthandler.register(SIGNAL, file=self._writer, all_threads=True)
        self._thread = threading.Thread(target=self._run, name="cpudist-stacks", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering; the signal does nothing afterwards."""
        faulthandler.unregister(SIGNAL)
        self._stop.close()
        self._thread.join(2 * _CLIENT_SECONDS)
        if not self._thread.is_alive():  # otherwise it is stuck in an answer, and what it holds stays open
            self.close()

    def close(self) -> None:
        """Let go of everything; in a forked child, which has no such thread and is no rank, this is all there is.

        A second time it does nothing.
        """
        if self._closed:
            return
        self._closed = True
        faulthandler.unregister(SIGNAL)
        self._socket.close()
        self._stop.close()
        self._stopping.close()
        os.close(self._reader)
        os.close(self._writer)

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for source in (self._socket, self._reader, self._stopping):
                selector.register(source, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopping:
                        return
                    with contextlib.suppress(OSError):  # whoever asked has gone
                        if key.fileobj is self._socket:
                            self._answer()
                        else:
                            self._show()

    def _answer(self) -> None:
        client, _ = self._socket.accept()
        with client:
            client.settimeout(_CLIENT_SECONDS)
            credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            _, user, _ = struct.unpack("3i", credentials)
            if user in (0, os.getuid()):  # such sockets have no permissions
                client.sendall(f"{self._heading()}{_stacks()}".encode(errors="replace"))

    def _show(self) -> None:
        """Put what the signal's handler has written on standard error, in one piece and with a heading."""
        text = read_all(self._reader, wait=0).decode(errors="replace")
        sys.stderr.write(f"cpudist: {self._heading()}{text}")
        sys.stderr.flush()

    def _heading(self) -> str:
        try:
            where = self._where()
        except Exception as error:  # noqa: BLE001 - the stacks say it too
            where = f"where it is cannot be said: {error!r}"
        return f"{self._who}: {where}\n"


def read_all(pipe: int, wait: float) -> bytes:
    """What can be read from `pipe`, which does not block: it gets `wait` seconds to begin, and ends with a pause."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(_PAUSE_SECONDS if parts else wait):
            try:
                part = os.read(pipe, 1 << 16)
            except BlockingIOError:  # somebody else has read it
                continue
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


def _stacks() -> str:
    """All threads' stacks but this one's, the main thread's first."""
    threads = {thread.ident: thread for thread in threading.enumerate() if thread is not threading.current_thread()}
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident in threads}
    main = threading.main_thread().ident
    lines = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        lines.append(f"  {threads[ident].name}:\n")
        lines += traceback.format_stack(frames[ident])
    return "".join(lines)
