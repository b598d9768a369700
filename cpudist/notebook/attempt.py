"""One attempt: this node's ranks as fresh processes, from their start until nothing of them is left.

Fresh, and not forked: threads, an MPI or a process group that the notebook has started do not exist in them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from cpudist.environments.notebook import rank_variables, without_launcher
from cpudist.launch.guards import Guards
from cpudist.launch.hostfile import Host
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.outcome import Failure, Mailbox, Result
from cpudist.notebook.relay import Relay
from cpudist.notebook.settings import Settings

_PROGRAM = (
    # Its only frame is not to be taken for the user's.
    "__name__ = 'cpudist.notebook'; "
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r}); "
    "from cpudist.notebook.worker import main; main()"
)
_LOOK_SECONDS = 0.2
_TALK_SECONDS = 0.5
_TOGETHER_SECONDS = 10.0  # for the other ranks to end by themselves when one has failed
_STOP_SECONDS = 2.0  # for ranks to clean up after an interrupt
_REST_SECONDS = 1.0  # for the rest of their output
_CAUSE_SECONDS = 5.0  # for another node to tell why ranks have ended here without a word


class _Rank:
    """One rank's process, its output and what it has left for us."""

    def __init__(self, settings: Settings, local_rank: int, payload: int, variables: Mapping[str, str]) -> None:
        self.number = settings.placement(local_rank).rank
        self.mailbox = Mailbox()
        self.failure: Failure | None = None
        prefix = settings.prefix(local_rank)
        shown = self.number == 0 or prefix is not None
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(payload), str(self.mailbox.descriptor)],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(payload, self.mailbox.descriptor),
            start_new_session=True,  # Jupyter interrupts the notebook's whole group; we tell the ranks
        )
        assert self.process.stderr is not None
        whole = prefix is not None or self.number != 0
        self.relays = [Relay(self.process.stderr, "stderr", prefix, whole)]
        if self.process.stdout is not None:
            self.relays.append(Relay(self.process.stdout, "stdout", prefix, whole))

    def see_end(self) -> bool:
        """Whether the process has ended; then, if it has failed, `failure` says how."""
        status = self.process.poll()
        if status is None:
            return False
        if status != 0 and self.failure is None:
            left = self.mailbox.content()
            self.failure = left if isinstance(left, Failure) else Failure.without_a_word(self.number, status)
        return True

    def close(self) -> None:
        for relay in self.relays:
            relay.close()
        self.mailbox.close()


class Attempt:
    """The ranks of this node; `run` lets them come to their end, and `close` leaves none behind.

    Args:
        settings: of this launch.
        nodes: where the ranks meet.
        payload: a descriptor of what `worker.py` reads.
        number: of this attempt.
    """

    def __init__(self, settings: Settings, nodes: Nodes, payload: int, number: int) -> None:
        self._nodes = nodes
        self._number = number
        self._ranks: list[_Rank] = []
        self._selector = selectors.DefaultSelector()
        mark = uuid.uuid4().hex
        # It ends all that carries the mark, also what a rank has started, and also when this process is killed.
        self._guards = Guards([Host("localhost")], mark, "RANK")
        # It must hear from us, also while whoever reads our output keeps us waiting.
        self._over = threading.Event()
        self._talk = threading.Thread(target=self._talk_to_guards, name="cpudist-notebook", daemon=True)
        self._talk.start()
        try:
            self._start(settings, payload, mark)
        except BaseException:
            self.close()
            raise

    def run(self) -> Result | Failure:
        """Wait for all ranks, passing their output on; returns rank 0's result, or how the attempt has failed.

        Raises:
            KeyboardInterrupt: after the ranks have heard of it too.
        """
        try:
            failure = self._wait()
        except KeyboardInterrupt:
            self._stop()
            raise
        self._pass_on_rest()
        if failure is not None:
            return self._nodes.tell(self._number, failure)
        return next((rank.mailbox.content() for rank in self._ranks if rank.number == 0), Result(None))

    def close(self) -> None:
        """End whatever is left."""
        self._over.set()
        self._talk.join()
        self._guards.end()
        for rank in self._ranks:
            rank.process.kill()
            rank.process.wait()
            rank.close()
        self._selector.close()

    def _talk_to_guards(self) -> None:
        while not self._over.wait(_TALK_SECONDS):
            self._guards.tick()

    def _start(self, settings: Settings, payload: int, mark: str) -> None:
        variables = _variables(settings, mark, self._number)
        for local_rank in range(settings.num_processes):
            own = rank_variables(settings.placement(local_rank), self._nodes.meeting(self._number))
            rank = _Rank(settings, local_rank, payload, {**variables, **own})
            self._ranks.append(rank)
            for relay in rank.relays:
                self._selector.register(relay, selectors.EVENT_READ)

    def _wait(self) -> Failure | None:
        """Until all ranks have ended, or must; the failure that came first, on any node."""
        deadline, elsewhere = float("inf"), None
        while not self._all_have_ended() and time.monotonic() < deadline:
            self._pass_on(_LOOK_SECONDS)
            elsewhere = elsewhere or self._nodes.look(self._number)
            first = self._first_failure()
            if first is not None and first.how == "killed":  # before the others tell what they fail with because of it
                self._nodes.tell(self._number, first)
            if first is not None or elsewhere is not None:
                deadline = min(deadline, time.monotonic() + _TOGETHER_SECONDS)
        first = self._first_failure()
        if first is not None and first.how == "ended":
            deadline = time.monotonic() + _CAUSE_SECONDS
            while elsewhere is None and self._nodes.several and time.monotonic() < deadline:
                self._pass_on(_LOOK_SECONDS)
                elsewhere = self._nodes.look(self._number)
        return elsewhere or first

    def _all_have_ended(self) -> bool:
        ended = [rank.see_end() for rank in self._ranks]  # all of them: each notes how it has failed
        return all(ended)

    def _first_failure(self) -> Failure | None:
        failures = [rank.failure for rank in self._ranks if rank.failure is not None]
        return min(failures, key=lambda failure: failure.blame, default=None)

    def _stop(self) -> None:
        """The cell was interrupted: so are the ranks, which get a moment to clean up."""
        stopped = Failure("the job", "was interrupted in another node's cell", time.monotonic(), stopped=True)
        self._nodes.tell(self._number, stopped)
        for rank in self._ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < deadline and not self._all_have_ended():
            self._pass_on(_LOOK_SECONDS)

    def _pass_on(self, seconds: float) -> bool:
        """Pass output on, waiting so long for some; False once there can be no more."""
        if not self._selector.get_map():
            time.sleep(seconds)
            return False
        for key, _ in self._selector.select(seconds):
            relay = key.fileobj
            assert isinstance(relay, Relay)
            if not relay.read():
                self._selector.unregister(relay)
        return bool(self._selector.get_map())

    def _pass_on_rest(self) -> None:
        """What is still in the pipes, but not what processes write that have escaped with the other end."""
        deadline = time.monotonic() + _REST_SECONDS
        while time.monotonic() < deadline and self._pass_on(_LOOK_SECONDS):
            pass


def _variables(settings: Settings, mark: str, number: int) -> dict[str, str]:
    """The environment of all ranks alike."""
    variables = without_launcher(os.environ)
    if variables.get("MPLBACKEND", "").startswith("module:"):  # the notebook's own, which draws into cells
        del variables["MPLBACKEND"]
    return {
        **variables,
        "CPUDIST_JOB_ID": mark,
        "CPUDIST_RESTART_COUNT": str(number),
        "ACCELERATE_MIXED_PRECISION": settings.mixed_precision,
    }
