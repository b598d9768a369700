"""Which machine this is, which of its CPUs a process may use, and how many are left over."""

import sys

import jobs
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.topology.identity import addresses, interface_of, node_identity
from cpudist.topology.machine import cores_to_spare


@given(st.integers(1, 4), st.integers(1, 8), st.booleans(), st.integers(1, 8))
def test_cores_to_spare(processes: int, cores: int, pinned: bool, threads: int) -> None:
    """Pinned processes have CPUs of their own; others share the machine's evenly."""
    everything = list(range(processes * cores))
    cpus = [everything[rank * cores : (rank + 1) * cores] if pinned else everything for rank in range(processes)]
    for own in cpus:
        assert cores_to_spare(own, cpus, threads) == cores - threads


def test_a_quota_leaves_no_core_over() -> None:
    """A pod with `cpu: 2` on a node of 64 cores: no thread that polls beside two that compute."""
    node = range(64)
    assert cores_to_spare(node, [node], 2) == 62
    assert cores_to_spare(node, [node], 2, quota=2.0) == 0
    assert cores_to_spare(node, [node, node], 1, quota=3.9) == 0


@pytest.mark.job
def test_processes_of_a_machine_agree_on_which_it_is() -> None:
    program = "from cpudist.topology.identity import node_identity; print(node_identity())"
    assert jobs.run([sys.executable, "-c", program], 60).stdout.strip() == node_identity()


def test_an_interface_has_its_own_addresses_and_a_missing_one_is_an_error() -> None:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert set(addresses()) <= own | {"127.0.0.1"}
    loopback = addresses("lo")
    assert loopback[0] == "127.0.0.1"
    assert set(loopback) <= {"127.0.0.1", "::1"}
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(UserError, match=r"no network interface eth77 .* give --interface one of .*lo"):
        addresses("eth77")
