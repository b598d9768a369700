"""Stop all ranks after the same step, with a checkpoint, when any rank gets a signal (`--checkpoint-on-signal`).

Ranks step together, since a step needs the gradients of all ranks. So at the end of a step every rank sees all entries
in the job's store that rank 0 made before the step. The protocol:

1. The rank that got the signal writes it into the store. Every rank reads it at each heartbeat.
2. A rank that has seen the signal adds 1 to a counter in the store at the end of its step, and reads the store at the
   end of every later step.
3. When the counter has reached the number of ranks, rank 0 announces that the next step is the last.

Steps cost nothing while there is no signal.

Launchers (Hydra, torchrun) send a signal to a rank's whole process group. If the signal killed a data worker, the
rank would fail before its last step. So child processes ignore these signals unless their parent sends them.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from cpudist.store import Connection
from cpudist.supervision.heartbeat import Heartbeat

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # from Kubernetes, the keyboard, Slurm with --signal=USR1@60

_SIGNAL = "cpudist/interruption/signal"
_KNOW = "cpudist/interruption/know"  # number of ranks that have seen the signal
_LAST_STEP = "cpudist/interruption/last_step"
_INSISTS_SECONDS = 1.0  # A SIGINT after this time is a second Ctrl-C; launchers forward the first one earlier.


class Interrupted(SystemExit):
    """Raised on all ranks, with a shell's exit status, when a signal has stopped them and the checkpoint is saved."""

    code: int


class Interruption:
    """Agrees with all ranks, over the job's store, on the step after which they stop."""

    def __init__(self, rank: int, size: int, store: Any, heartbeat: Heartbeat) -> None:
        self._rank, self._size, self._store, self._heartbeat = rank, size, store, heartbeat
        self._received: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self.signal: int | None = None  # the signal that any rank has received; set once this rank has seen it
        self._counted = False
        self._steps = 0  # completed steps of all trainings of this process; the same number on all ranks
        self._last_step: int | None = None

    def begin(self) -> None:
        """Install handlers that record signals; call it in the main thread."""
        if not self._before:
            _shielding.set()
            self._before = {number: signal.signal(number, self._record_signal) for number in SIGNALS}
            self._heartbeat.add(self._beat)

    def end(self) -> None:
        """Restore the former signal handlers."""
        if self._before:
            self._heartbeat.remove(self._beat)
            _shielding.clear()
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}

    def is_last(self) -> bool:
        """Return whether this step is the last one of all ranks; call it once at the end of every step."""
        self._steps += 1
        if self.signal is None:
            return False
        if not self._counted:  # not in the heartbeat: a rank that is counted must then read the store at each step
            self._counted = True
            self._store.add(_KNOW, 1)
        if self._last_step is None and self._rank == 0 and self._store.add(_KNOW, 0) == self._size:
            self._last_step = self._steps + 1
            self._store.set(_LAST_STEP, str(self._last_step))
        elif self._last_step is None and self._store.check([_LAST_STEP]):
            self._last_step = int(self._store.get(_LAST_STEP))
        return self._last_step is not None and self._steps >= self._last_step

    def _record_signal(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._at > _INSISTS_SECONDS:
            raise KeyboardInterrupt

    def _beat(self, store: Connection | None) -> None:
        """Publish the signal that this rank has received; poll for a signal that another rank has received."""
        if store is None:  # a job of one process, or the watch lets this rank go on without the store
            self.signal = self.signal or self._received
        elif self.signal is None:
            if self._received is not None:
                store.set({_SIGNAL: str(self._received).encode()})
            if found := store.get([_SIGNAL]):
                self.signal = int(found[0])


_shielding = threading.Event()  # set while this process records signals
_forking = threading.local()  # mask: the signal mask of the forking thread before it blocked the signals


def _before_fork() -> None:
    """Block the signals: in the child a thread checks who sent them, which inherited handlers cannot do."""
    runs_a_program = sys._getframe(1).f_globals.get("__name__") == "subprocess"  # exec would keep the mask
    if _shielding.is_set() and not runs_a_program:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork_in_parent() -> None:
    if (mask := vars(_forking).pop("mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if vars(_forking).pop("mask", None) is not None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=_obey_parent, args=(os.getppid(),), name="cpudist-signals", daemon=True).start()


def _obey_parent(parent: int) -> None:
    """Let a signal have its default effect if `parent` has sent it, for example to end a pool of processes."""
    while True:
        sent = signal.sigwaitinfo(SIGNALS)
        if sent.si_pid == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [sent.si_signo])
            os.kill(os.getpid(), sent.si_signo)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
