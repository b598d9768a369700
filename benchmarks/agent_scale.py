"""Connect to many made-up node agents, as `cpudist launch` does, and print what starting and hearing them costs.

    python benchmarks/agent_scale.py [64 256 1000]

The agents are shells on this machine that answer at once; a real one takes ssh and a Python to start.
"""

import os
import sys
import time
from unittest import mock

from usage import asked

from cpudist.hosts import node_agents
from cpudist.hosts.node_agents import NodeAgents
from cpudist.launchers.mpi_launcher import Host

_AGENT = 'echo "ranks 2"; while read line; do case $line in end) echo "left 0"; exit;; *) echo "ranks 2";; esac; done'
_LOOKS = 50


def measure(size: int) -> str:
    """Return one line of the table."""
    hosts = [Host(f"n{number}") for number in range(size)]
    with (
        mock.patch.object(node_agents, "command_on", return_value=["sh", "-c", _AGENT]),
        mock.patch.object(node_agents, "is_here", lambda name: name == "localhost"),
    ):
        began = time.monotonic()
        agents = NodeAgents(hosts, "job", "RANK")
        started = time.monotonic() - began
        files, busy = len(os.listdir("/proc/self/fd")), time.process_time()
        for _ in range(_LOOKS):  # ten per second
            agents.tick()
            assert not agents.lost
            time.sleep(0.1)
        share = (time.process_time() - busy) / (0.1 * _LOOKS)
        began = time.monotonic()
        unreached = agents.end()
        assert not unreached, unreached
        ended = time.monotonic() - began
    return f"| {size} | {started:.1f} s | {files} | {share:.1%} | {ended:.1f} s |"


def main() -> None:
    print("| agents | starting | open files | of a core while it runs | ending |\n|---|---|---|---|---|")
    for size in [int(word) for word in sys.argv[1:]] or [64, 256, 1000]:
        print(measure(size), flush=True)


if __name__ == "__main__":
    asked(__doc__)
    main()
