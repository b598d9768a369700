"""Which CPUs a process may use, and how many are left over."""

import os

from hypothesis import given
from hypothesis import strategies as st

from cpudist.topology.machine import allowed_cpus, cores_to_spare, cpu_model


def test_what_the_kernel_allows() -> None:
    assert set(allowed_cpus()) == os.sched_getaffinity(0)
    assert cpu_model()


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
    assert cores_to_spare(node, [node], 2, quota=None) == 62
