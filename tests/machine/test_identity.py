"""Which machine this is."""

from __future__ import annotations

import subprocess
import sys

import psutil

from cpudist.machine.identity import addresses, free_port, node_identity


def test_processes_of_a_machine_agree_on_which_it_is() -> None:
    program = "from cpudist.machine.identity import node_identity; print(node_identity())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == node_identity()


def test_addresses_are_this_machines_own() -> None:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert set(addresses()) <= own | {"127.0.0.1"}


def test_a_free_port_can_be_listened_on() -> None:
    assert 0 < free_port() < 65536
