"""`--checkpoint-on-signal`: a signal to any rank, and all ranks stop after the same step, with a checkpoint.

Ranks step together, since a step ends with all ranks' gradients: what rank 0 has put into the job's store before it
begins a step, every rank finds there when it ends that step. So:

1. The rank that got the signal says so in the store, where every rank looks once a second, in a thread of its own.
2. Every rank that knows of it counts itself at the end of a step, and from then on looks into the store at the end of
   every step.
3. When all have, rank 0 announces the step after the one that it has just ended: that is the last.

While there is no signal, steps cost nothing.

Launchers (Hydra, torchrun) send a signal to a rank's whole process group. A worker that loads data and dies of it would
fail the rank before its last step: so children hear only what their parent sends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from types import FrameType
from typing import Any

from cpudist.console import first_line, say
from cpudist.errors import StartupTimeout

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # Kubernetes', the keyboard's, Slurm's with --signal=USR1@60

_SIGNAL = "cpudist/interruption/signal"
_KNOW = "cpudist/interruption/know"  # counter of the ranks that know
_LAST_STEP = "cpudist/interruption/last_step"
_LOOK_SECONDS = 1.0
_LOOKS_PER_SECOND = 500.0  # at most, of all ranks together, as those of the watch
_STORE_SECONDS = 5.0
_INSISTS_SECONDS = 1.0  # launchers pass on what the terminal has sent already; a person takes longer


class Interrupted(SystemExit):
    """All ranks have stopped because of a signal, and the checkpoint is saved.

    Attributes:
        status: the exit status, as a shell would have it.
    """

    def __init__(self, signal_number: int) -> None:
        self.status = 128 + signal_number
        super().__init__(self.status)


class Interruption:
    """This rank's part in stopping together.

    Args:
        rank: this rank.
        size: the number of ranks.
        store: the job's.
    """

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self._rank = rank
        self._size = size
        self._store = store
        self._threads_store = store.clone()
        self._threads_store.set_timeout(timedelta(seconds=_STORE_SECONDS))
        self._received: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._looks = False
        self.signal: int | None = None  # that some rank has got; set once this rank knows of it
        self._counted = False
        self._steps = 0  # that this process has ended, in whatever trainings: as many as any other rank has
        self._last_step: int | None = None

    def begin(self) -> None:
        """From now on signals are taken down instead of ending the process; in the main thread."""
        if self._thread is None:
            _shielding.set()
            self._before = {number: signal.signal(number, self._take_down) for number in SIGNALS}
            self._stop.clear()
            self._looks = True
            self._thread = threading.Thread(target=self._look, name="cpudist-signals", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Signals do again what they did before."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._give_back()

    def is_last(self) -> bool:
        """Whether the step that this rank has just ended is the last one, the same on all ranks; called once a step."""
        self._steps += 1
        if self.signal is None:
            return False
        if not self._counted:  # here, not in the thread: whoever has counted itself looks from this step on
            self._counted = True
            self._store.add(_KNOW, 1)
        if self._last_step is None and self._rank == 0 and self._store.add(_KNOW, 0) == self._size:
            self._last_step = self._steps + 1
            self._store.set(_LAST_STEP, str(self._last_step))
        elif self._last_step is None and self._store.check([_LAST_STEP]):
            self._last_step = int(self._store.get(_LAST_STEP))
        return self._last_step is not None and self._steps >= self._last_step

    def _take_down(self, number: int, frame: FrameType | None) -> None:
        if not self._looks:
            self._give_back()
            os.kill(os.getpid(), number)
        elif self._received is None:
            self._received, self._at = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._at > _INSISTS_SECONDS:
            raise KeyboardInterrupt

    def _give_back(self) -> None:
        _shielding.clear()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _look(self) -> None:
        try:
            while self.signal is None and not self._stop.wait(max(_LOOK_SECONDS, self._size / _LOOKS_PER_SECOND)):
                if self._received is not None:
                    self._threads_store.set(_SIGNAL, str(self._received))
                if self._threads_store.check([_SIGNAL]):
                    self.signal = int(self._threads_store.get(_SIGNAL))
        except (RuntimeError, StartupTimeout) as error:  # the store is gone, or does not answer in time
            say(
                f"warning: rank {self._rank} lost the job's store: {first_line(error)}; "
                "from now on signals end the job without a checkpoint"
            )
            self._looks = False
            if self._received is not None:  # it came in vain: once more, to the handler before this one's
                os.kill(os.getpid(), self._received)


_shielding = threading.Event()  # set while this process takes signals down


def _after_fork_in_child() -> None:
    if _shielding.is_set():
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=_obey, args=(os.getppid(),), name="cpudist-signals", daemon=True).start()


def _obey(parent: int) -> None:
    """Let a signal do what it does if `parent` has sent it, as whoever ends a pool of processes does."""
    while True:
        sent = signal.sigwaitinfo(SIGNALS)
        if sent.si_pid == parent:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [sent.si_signo])
            os.kill(os.getpid(), sent.si_signo)


os.register_at_fork(after_in_child=_after_fork_in_child)
