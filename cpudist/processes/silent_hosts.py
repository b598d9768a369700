"""Name the hosts that do not answer, a while before they count as lost.

Whether such a host is down, frozen or cut off cannot be told from outside.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cpudist.console import names_of, say


def silence_seconds(end: float) -> float:
    """Return the seconds without an answer after which a host is named, given those after which it is lost."""
    return end / 3


class SilentHosts:
    """Reports hosts that do not answer, and that they answer again.

    Args:
        end: the seconds without an answer after which a host is lost.
    """

    def __init__(self, end: float) -> None:
        self._end = end
        self._reported: set[str] = set()

    def find(self, silences: Mapping[str, float]) -> set[str]:
        """Return the hosts to be named, given for how many seconds each host has not answered."""
        return {host for host, seconds in silences.items() if seconds > silence_seconds(self._end)}

    def report(self, silences: Mapping[str, float]) -> None:
        """Report what has changed since the last call. A lost host has no entry."""
        silent = self.find(silences)
        if found := sorted(silent - self._reported):
            self._say(found, max(silences[host] for host in found))
        if again := sorted(self._reported & silences.keys() - silent):
            say(f"{names_of(again)} {'answers' if len(again) == 1 else 'answer'} again")
        self._reported = silent

    @contextmanager
    def waiting_for(self, host: str) -> Iterator[None]:
        """Report that a host does not answer, and after the block that it answers again."""
        self._say([host], silence_seconds(self._end))
        yield
        say(f"{host} answers again")

    def _say(self, hosts: Sequence[str], seconds: float) -> None:
        verb = "does" if len(hosts) == 1 else "do"
        say(f"warning: {names_of(hosts)} {verb} not answer for {seconds:.0f} s; the job ends at {self._end:.0f} s")
