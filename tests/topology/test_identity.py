"""Which machine this is."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest

from cpudist.topology.identity import addresses, free_port, node_identity


@pytest.mark.job
def test_processes_of_a_machine_agree_on_which_it_is() -> None:
    program = "from cpudist.topology.identity import node_identity; print(node_identity())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == node_identity()


def test_addresses_are_this_machines_own() -> None:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert set(addresses()) <= own | {"127.0.0.1"}


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert free_port() != port
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
