"""Name the hosts that do not answer, a while before they count as lost.

Whether such a host is down, frozen or cut off cannot be told from outside.
"""

from collections.abc import Mapping, Sequence

from cpudist.console import names_of, say


def silence_seconds(end: float) -> float:
    """Return the seconds without an answer after which a host is named, given those after which it is lost."""
    return end / 3


class SilentHosts:
    """Reports hosts that do not answer, and that they answer again; after `end` seconds a host is lost."""

    def __init__(self, end: float) -> None:
        self._end = end
        self._reported: set[str] = set()

    def report(self, silences: Mapping[str, float]) -> None:
        """Report changes, given for how many seconds each host has not answered; a lost host has no entry."""
        silent = {host for host, seconds in silences.items() if seconds > silence_seconds(self._end)}
        if found := sorted(silent - self._reported):
            self.say(found)
        if again := sorted(self._reported & silences.keys() - silent):
            say(f"{names_of(again)} {'answers' if len(again) == 1 else 'answer'} again")
        self._reported = silent

    def say(self, hosts: Sequence[str]) -> None:
        """Name hosts that do not answer."""
        verb, seconds = "does" if len(hosts) == 1 else "do", silence_seconds(self._end)
        say(f"warning: {names_of(hosts)} {verb} not answer for {seconds:.0f} s; the job ends at {self._end:.0f} s")
