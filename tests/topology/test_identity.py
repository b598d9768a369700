"""Which machine this is."""

import socket
import sys

import jobs
import psutil
import pytest

from cpudist.errors import UserError
from cpudist.topology.identity import addresses, free_port, interface_of, node_identity


@pytest.mark.job
def test_processes_of_a_machine_agree_on_which_it_is() -> None:
    program = "from cpudist.topology.identity import node_identity; print(node_identity())"
    assert jobs.run([sys.executable, "-c", program], 60).stdout.strip() == node_identity()


def test_addresses_are_this_machines_own() -> None:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert set(addresses()) <= own | {"127.0.0.1"}


def test_an_interface_has_its_own_addresses_and_a_missing_one_is_an_error() -> None:
    loopback = addresses("lo")
    assert loopback[0] == "127.0.0.1"
    assert set(loopback) <= {"127.0.0.1", "::1"}
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(UserError, match=r"no network interface eth77 .* give --interface one of .*lo"):
        addresses("eth77")


def test_a_free_port_can_be_listened_on() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert free_port() != port
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
