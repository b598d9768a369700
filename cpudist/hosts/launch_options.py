"""The options of `cpudist launch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.pinning_plan import Part


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `cpudist launch`.

    Attributes:
        hosts: the hosts of the hostfile; None: this host.
        script: the script among them, which all hosts must have; empty where the target is no script.
        ranks: the number of all ranks; None: as many as the hosts take.
        per_host: ranks on each host, or one for each part of it; None: as the hostfile says, otherwise the fastest
            number that `cpudist plan --measure` has found there, otherwise one for each NUMA node.
        interface: the network interface for all traffic; None: each library chooses.
        max_restarts: how many failures within a day are followed by a restart.
        min_nodes: restart with no fewer hosts; None: with no fewer than at first.
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
