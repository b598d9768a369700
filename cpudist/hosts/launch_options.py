"""The options of `cpudist launch`."""

from collections.abc import Sequence
from dataclasses import dataclass

from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.pinning_plan import Part


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `cpudist launch`.

    Attributes:
        hosts: the hosts of the hostfile; None: this host.
        script: the script in `arguments`, which all hosts must have; empty if there is none.
        ranks: total number of ranks; None: as many as the hosts take.
        per_host: ranks on each host, or the part of a host that gets one rank each. None: the hostfile's number, or
            else the number of `cpudist plan --measure` on that host, or else one rank per NUMA node.
        interface: the network interface for all traffic; None: each library chooses.
        max_restarts: largest number of restarts within a day.
        min_nodes: smallest number of hosts for a restart; None: as many as at the first start.
        wait: seconds to wait for hosts that are still starting.
        grace: seconds that ranks get to save a checkpoint after a signal.
    """

    hosts: Sequence[Host] | None
    arguments: Sequence[str]
    script: str = ""
    ranks: int | None = None
    per_host: int | Part | None = None
    interface: str | None = None
    all_output: bool = False
    max_restarts: int = 0
    min_nodes: int | None = None
    wait: int = 0
    grace: int = 60
