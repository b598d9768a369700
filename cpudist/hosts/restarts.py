"""Decide whether a failed job starts again, when, and on which hosts."""

import time
from collections.abc import Sequence

from cpudist.console import say
from cpudist.launchers.mpi_launcher import Host

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0  # the pause doubles between these bounds
_LONG_ATTEMPT_SECONDS = 120.0
_WINDOW_SECONDS = 86_400.0  # older failures are ignored


class Restarts:
    """The restarts of one job, of which `most` are allowed within a day."""

    def __init__(self, most: int) -> None:
        self.count = 0  # how often the job has started again
        self.left_out: list[Host] = []  # the hosts that get no ranks any more
        self._most = most
        self._failures: list[float] = []
        self._suspect: Host | None = None
        self._pause = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def after_failure(self) -> bool:
        """Return whether another attempt is allowed, after a pause of 0 s, 5 s, 10 s, … 300 s.

        After an attempt of two minutes the pauses begin again.
        """
        now = time.monotonic()
        self._failures = [*(moment for moment in self._failures if now - moment < _WINDOW_SECONDS), now]
        if len(self._failures) > self._most:
            if self._most:
                say(f"not starting again: {len(self._failures)} failures within a day (--max-restarts {self._most})")
            return False
        self.count += 1
        if now - self._began > _LONG_ATTEMPT_SECONDS:
            self._pause = 0.0
        if self._pause:
            say(f"starting again in {self._pause:g} s")
        time.sleep(self._pause)
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return True

    @property
    def number(self) -> str:
        """This restart's number, and the number that a day allows."""
        return f"{len(self._failures)} of {self._most}"

    def leave_out(self, suspect: Host | None, hosts: Sequence[Host], least: int) -> None:
        """Stop using the suspect of two failures in a row if at least `least` of the job's `hosts` remain."""
        twice = suspect is not None and self._suspect is not None and suspect.name == self._suspect.name
        self._suspect = suspect
        host = next((host for host in hosts if suspect is not None and host.name == suspect.name), None)
        if not twice or host is None or host in self.left_out:
            return
        left = len(hosts) - len(self.left_out) - 1
        if left < least:
            say(f"{host.name} failed twice in a row, and stays: without it {left} hosts are left (--min-nodes {least})")
            return
        self.left_out.append(host)
        say(f"warning: going on without {host.where}: {host.name}, which failed twice in a row")
