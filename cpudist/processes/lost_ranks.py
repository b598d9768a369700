"""Describe the first rank that ended without an error of its own, and report hosts that do not answer.

The store, the other ranks and `cpudist launch` may each notice a lost rank, and use the same sentence. The rank that
reports a failure also writes the ranks that caused it into a file. The node agent of that host (hosts/node_agent.py)
names these ranks to `cpudist launch`, which may then leave out the host on which they were.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from cpudist.console import names_of, say
from cpudist.processes.attempt import JOB_ID

_HOW = {
    "ended": "ended without an error message (killed, out of memory, or crashed?)",
    "unreachable": "cannot be reached any more (host down, or its link?)",
}
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (dmesg there tells whether memory ran out)",
    signal.SIGBUS: " (is /dev/shm there full? see df /dev/shm; more: docker run --shm-size=2g)",
}


@dataclass(frozen=True)
class LostRank:
    """A rank that was lost."""

    # "ended": its process is gone; "unreachable": its host does not answer; a number: the signal that killed it.
    how: Literal["ended", "unreachable"] | int
    rank: int | None = None  # the rank; None if unknown
    host: str = ""  # its host; empty if unknown
    last_seen: str = ""  # its last activity, such as "last in train.py:88"; empty if unknown

    def __str__(self) -> str:
        """Return the sentence for the user, without a full stop."""
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        where = f" on {self.host}" if self.host else ""
        how = killed_by(self.how) if isinstance(self.how, int) else _HOW[self.how]
        return f"{who}{where} {how}" + (f"; it was {self.last_seen}" if self.last_seen else "")


def first_killed(killed: Sequence[LostRank], first_ended: Mapping[str, int | None]) -> LostRank | None:
    """Return the loss that ended the job, as far as it is known; None if no signal killed a rank.

    A launcher kills the other ranks with SIGKILL and may report them like the first, so other signals take precedence.
    If it stays unknown which of several ranks ended first, return no rank: the surviving ranks report it.

    Args:
        killed: the ranks that signals have killed, from the launcher's output.
        first_ended: for each host the rank whose process ended first there; None if several ended together.
    """
    telling = [loss for loss in killed if loss.how != signal.SIGKILL] or list(killed)
    if not telling:
        return None
    first = telling[0]
    if len(telling) > 1:
        ranks = {loss.rank for loss in telling} & set(first_ended.values())
        if len({loss.host for loss in telling}) > 1 or len(ranks) != 1:
            return LostRank(first.how)
        first = next(loss for loss in telling if loss.rank in ranks)
    return first if first.rank is not None else replace(first, rank=first_ended.get(first.host))


def tell_launch(ranks: Sequence[int]) -> None:
    """Write the ranks that caused a failure into a file for `cpudist launch`; the first report on a host is kept."""
    job = os.environ.get(JOB_ID)
    if job and ranks:
        with suppress(OSError):  # without the file no host is left out
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(_file(job), flags, 0o600), "w", encoding="utf-8") as file:
                print(*ranks, file=file)


def told(job: str) -> list[int]:
    """Return the ranks that `tell_launch` has written on this host, and remove the file."""
    try:
        with open(os.open(_file(job), os.O_RDONLY | os.O_NOFOLLOW), encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return []
            text = file.read()
            ranks = [int(rank) for rank in text[: text.rindex("\n")].split()]
        os.unlink(_file(job))
        return ranks
    except (OSError, ValueError):  # the file is missing, incomplete or of another version
        return []


def _file(job: str) -> str:
    return f"/tmp/cpudist-failure-{job}.txt"  # not in TMPDIR, which an ssh session may not set


def killed_by(number: int) -> str:
    """Return words that follow a rank's name, such as "was killed by SIGTERM"."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"was killed by {name}{_HINTS.get(number, '')}"


def silence_seconds(end: float) -> float:
    """Return after how many seconds without an answer a host is reported; after `end` seconds it is lost."""
    return end / 3


class SilentHosts:
    """Reports hosts that do not answer, and hosts that answer again; after `end` seconds a host is lost.

    Whether such a host is down, frozen or cut off cannot be told from outside.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self._reported: set[str] = set()

    def report(self, silences: Mapping[str, float]) -> None:
        """Report changes. `silences`: host -> seconds since its last answer, without the hosts that are lost."""
        silent = {host for host, seconds in silences.items() if seconds > silence_seconds(self._end)}
        if found := sorted(silent - self._reported):
            self.say(found)
        if again := sorted(self._reported & silences.keys() - silent):
            say(f"{names_of(again)} {'answers' if len(again) == 1 else 'answer'} again")
        self._reported = silent

    def say(self, hosts: Sequence[str]) -> None:
        """Report these hosts as silent."""
        verb, seconds = "does" if len(hosts) == 1 else "do", silence_seconds(self._end)
        say(f"warning: {names_of(hosts)} {verb} not answer for {seconds:.0f} s; the job ends at {self._end:.0f} s")
