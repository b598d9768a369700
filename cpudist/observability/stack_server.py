"""Serve this rank's status, figures and stacks.

A thread answers `cpudist stacks` (`rank_answers.py`) at a socket in Linux's abstract namespace: the socket has no file,
so it disappears with the rank even after SIGKILL. On a signal, C code of faulthandler writes the stacks to a pipe even
while the thread cannot run; the thread copies them to standard error, or `cpudist stacks` reads the pipe itself.
"""

import contextlib
import faulthandler
import fcntl
import json
import os
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from cpudist.console import say

# Makes a rank write its stacks to standard error. Slurm's users, submitit and Lightning use SIGUSR1 and SIGUSR2 for
# preemption, and MPICH for lost ranks; terminals and torchrun end jobs with SIGQUIT.
SIGNAL = signal.SIGRTMIN + 7
_CLIENT_SECONDS = 5.0  # Time for a client to read the answer.
_PAUSE_SECONDS = 0.1  # The stacks are complete after a pause of this length.
_PIPE_BYTES = 1 << 20  # Room for faulthandler's longest output (100 threads of 100 frames), which must not block.
MOST_BYTES = 1 << 24  # Largest size of an answer.
_NAME = re.compile(r"cpudist/rank/(\d{1,9})\.(\d{1,9})\.(\d{1,9})\.([!-~]*)")


@dataclass(frozen=True, order=True)
class StackAddress:
    """Address of a rank on its machine."""

    job: str  # a text that identifies the job on this machine; equal on all its ranks
    rank: int
    size: int  # number of ranks of the job
    pipe: int  # the file descriptor, in the rank's process, from which its stacks can be read after `SIGNAL`

    def socket_name(self) -> str:
        """Return the name of the rank's socket in Linux's abstract namespace: it begins with a zero byte (unix(7))."""
        return f"\0cpudist/rank/{self.rank}.{self.size}.{self.pipe}.{self.job}"

    @classmethod
    def of(cls, socket_name: str) -> Self | None:
        """Return the address of a socket's name in /proc/net/unix, with @ for the zero byte; None for other sockets."""
        match = _NAME.fullmatch(socket_name[1:])
        return cls(match[4], int(match[1]), int(match[2]), int(match[3])) if match else None


class StackServer:
    """Answers requests for this rank's stacks from its creation until `stop`.

    Args:
        job: a text that all ranks of the job have in common, such as the store's address.
        name: the rank's name in headings, such as "rank 3 on h1".
        status: returns the rank's activity as a short text; the thread calls it.

    Raises:
        OSError: the socket cannot be created, for example because another user has taken its name.
    """

    def __init__(self, job: str, rank: int, size: int, name: str, status: Callable[[], str]) -> None:
        self.figures: Callable[[], dict[str, Any]] = dict  # returns the rank's figures; called by the thread
        self.job, self._name, self._status = job, f"{name} (process {os.getpid()})", status
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)  # the signal's handler must not block
        with contextlib.suppress(OSError):  # Linux limits a user's pipes; the default of 64 KB mostly suffices
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._socket = socket.socket(socket.AF_UNIX)
        self._stopping, self._stop = socket.socketpair()
        self._closed = False
        try:
            self._socket.bind(StackAddress(job, rank, size, self._reader).socket_name())
            self._socket.listen()
        except OSError:
            self.close()
            raise
        with contextlib.suppress(ValueError):  # raised outside of the main thread
            signal.signal(SIGNAL, signal.SIG_IGN)
        faulthandler.register(SIGNAL, file=self._writer, all_threads=True)
        self._thread = threading.Thread(target=self._run, name="cpudist-stacks", daemon=True)
        self._thread.start()

    def show(self) -> None:
        say(f"{self._heading()}{_stacks()}".rstrip())

    def stop(self) -> None:
        """Stop answering; from now on this process ignores the signal."""
        faulthandler.unregister(SIGNAL)
        self._stop.close()
        self._thread.join(2 * _CLIENT_SECONDS)
        if not self._thread.is_alive():  # a thread that is stuck in an answer keeps its files
            self.close()

    def close(self) -> None:
        """Close all files. A forked child does not have the thread and needs only this. A second call does nothing."""
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
                    # The call fails if the client has disconnected or the script has replaced standard error.
                    with contextlib.suppress(Exception):
                        if key.fileobj is self._socket:
                            self._answer()
                        else:
                            self._show()

    def _answer(self) -> None:
        client, _ = self._socket.accept()
        with client:
            client.settimeout(_CLIENT_SECONDS)
            if peer(client)[1] in (0, os.getuid()):  # abstract sockets have no permissions
                client.sendall(f"{json.dumps(self.figures())}\n{self._heading()}{_stacks()}".encode(errors="replace"))

    def _show(self) -> None:
        """Copy the output of the signal's handler to standard error, with a heading and in a single write."""
        text = read_pipe(self._reader, wait=0).decode(errors="replace")
        say(f"{self._heading()}{text}".rstrip())

    def _heading(self) -> str:
        try:
            status = self._status()
        except Exception as error:  # noqa: BLE001 - the stacks are shown without it
            status = f"its status cannot be read: {error!r}"
        return f"{self._name}: {status}\n"


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process id, in this namespace, and the user of the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", credentials)
    return pid, user


def read_pipe(pipe: int, wait: float) -> bytes:
    """Read from a non-blocking pipe until it pauses; wait at most `wait` seconds for the first byte."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(_PAUSE_SECONDS if parts else wait):
            try:
                part = os.read(pipe, 1 << 16)
            except BlockingIOError:  # another reader has taken the bytes
                continue
            if not part or len(parts) > MOST_BYTES >> 16:
                break
            parts.append(part)
    return b"".join(parts)


def _stacks() -> str:
    """Return the stacks of all threads but this one, the main thread's first."""
    threads = dict(threading._active)  # type: ignore[attr-defined]  # threading.enumerate takes a lock
    threads.pop(threading.get_ident(), None)
    frames = {ident: frame for ident, frame in sys._current_frames().items() if ident in threads}
    main = threading.main_thread().ident
    lines = []
    for ident in sorted(frames, key=lambda ident: ident != main):
        lines.append(f"  {threads[ident].name}:\n")
        lines += traceback.format_stack(frames[ident])
    return "".join(lines)
