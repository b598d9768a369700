"""The options of `cpudist launch`, and how many ranks they give each host, at the start and after each failure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.hosts.check import Checked, check_hosts, wait_for
from cpudist.hosts.hostfile import room, spread
from cpudist.hosts.remote import THIS_HOST
from cpudist.launchers.mpi_launcher import Host, MpiLauncher
from cpudist.pinning.plan import Part


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `cpudist launch`."""

    hosts: Sequence[Host] | None  # the hosts of the hostfile; None: this host
    arguments: Sequence[str]
    script: str = ""  # the script in `arguments`, which all hosts must have; empty if there is none
    ranks: int | None = None  # total number of ranks; None: as many as the hosts take
    # Ranks on each host, or a part of a host: one rank for each such part. None: the hostfile's number, or else
    # the number of `cpudist plan --measure` on that host, or else one rank per NUMA node.
    per_host: int | Part | None = None
    interface: str | None = None  # the network interface for all traffic; None: each library chooses
    all_output: bool = False
    max_restarts: int = 0  # largest number of restarts within a day
    min_nodes: int | None = None  # smallest number of hosts for a restart; None: as many as at the first start
    wait: int = 0  # seconds to wait for hosts that are still starting
    saves: bool = False  # whether ranks save a checkpoint after a signal
    grace: int = 60  # seconds that ranks get to save it


class HostPlan:
    """The hosts of one job and their ranks. Call `start` first; after a failure call `usable`, then `restart`.

    Attributes:
        hosts: all hosts that the user has named.
        interface: the network interface for all traffic: the user's, or the only one that connects hosts; None: any.
    """

    def __init__(self, options: LaunchOptions, mpi: type[MpiLauncher]) -> None:
        here = Host("localhost", options.ranks if options.per_host is None else None, THIS_HOST)
        self.hosts = list(options.hosts or [here])
        self._options = options
        self.interface = options.interface
        self._by_name = mpi.by_name
        self._has_file = options.hosts is not None
        self._checked = Checked({}, {})  # the newest check
        # Ask each host how many ranks its own plan has if --ppn is a part (socket, numa, l3) or slots are missing.
        known = isinstance(options.per_host, int)
        self._asks_hosts = not known and (options.per_host is not None or not all(host.slots for host in self.hosts))

    def spread(self) -> list[Host]:
        """Return the hosts that get ranks, each with its number of ranks as `slots`; ask hosts if needed."""
        if self._asks_hosts:
            self._require(self.hosts)
        return self._spread(self.hosts, self._options.ranks)

    def start(self) -> list[Host]:
        """Wait for hosts that are still starting, check them, and return those with ranks, as `spread` does."""
        if self._options.wait:
            wait_for(self.hosts, self._options.wait)
        placed = self.spread()
        if self._has_file and not self._asks_hosts:
            self._require(placed)
        return placed

    def usable(self, left_out: Sequence[Host]) -> list[Host]:
        """Check all hosts except `left_out` again; return the usable ones."""
        kept = [host for host in self.hosts if host not in left_out]
        self._checked = self._check(kept)
        errors = {host for host, found in self._checked.findings.items() if any(one.level == "error" for one in found)}
        for finding in self._checked.of_level("error"):
            say(f"warning: going on without {finding.line}")
        return [host for host in kept if host not in errors]

    def restart(self, usable: Sequence[Host]) -> list[Host]:
        """Spread the ranks over `usable` hosts; start fewer ranks if they do not all fit."""
        ranks = self._options.ranks
        if self._has_file:
            room = number_of_ranks(self._spread(usable, None))
            ranks = min(ranks or room, room)
        return self._spread(usable, ranks)

    def _require(self, hosts: Sequence[Host]) -> None:
        self._checked = self._check(hosts)
        for finding in self._checked.of_level("warning"):
            say(f"warning: {finding.line}")
        if errors := self._checked.of_level("error"):
            raise UserError("\n".join(finding.line for finding in errors))

    def _check(self, hosts: Sequence[Host]) -> Checked:
        by_name = self._by_name and self.interface is None
        checked = check_hosts(hosts, self._options.script, by_name, interface=self.interface)
        self.interface = self.interface or checked.interface
        return checked

    def _spread(self, hosts: Sequence[Host], ranks: int | None) -> list[Host]:
        if isinstance(self._options.per_host, int):
            return spread(hosts, ranks, self._options.per_host)
        return spread(list(map(self._with_slots, hosts)) if self._asks_hosts else hosts, ranks)

    def _with_slots(self, host: Host) -> Host:
        """Return a host with its own plan's number of ranks as slots; `UserError` if the hostfile allows fewer."""
        part = self._options.per_host
        if part is None and host.slots is not None:
            return host
        ranks = self._checked.facts[host].ranks[f"{part or 'default'}"]
        return replace(host, slots=room(host, ranks))


def number_of_ranks(hosts: Iterable[Host]) -> int:
    return sum(host.slots or 0 for host in hosts)
