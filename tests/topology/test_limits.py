"""A process on its machine: cgroups that limit it, as files and real ones; cores left over; its network interfaces."""

import os
import sys
from pathlib import Path

import jobs
import psutil
import pytest
from control_group import ControlGroup
from hypothesis import given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.topology.identity import addresses, interface_of
from cpudist.topology.kernel_files import Files
from cpudist.topology.limits import Limits, read_limits
from cpudist.topology.machine import cores_to_spare


def tree(root: Path, files: dict[str, str]) -> Files:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return Files(root)


def test_version_2_takes_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    """Of the affinity mask and the cpuset, the CPUs that are in both."""
    pod = "sys/fs/cgroup/kubepods.slice/pod1"
    files = tree(
        tmp_path,
        {
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate",
            "proc/self/cgroup": "0::/kubepods.slice/pod1/container",
            "sys/fs/cgroup/cpu.max": "max 100000",
            f"{pod}/cpu.max": "150000 100000",
            f"{pod}/memory.max": str(8 << 30),
            f"{pod}/container/cpu.max": "max 100000",
            f"{pod}/container/memory.max": "max",
            f"{pod}/container/cpuset.cpus.effective": "0-63",
        },
    )
    found = read_limits(files, frozenset({3, 63, 64}), {})
    assert (found.quota, found.memory, found.cpus) == (1.5, 8 << 30, {3, 63})


@pytest.mark.parametrize(("limit", "memory"), [(9223372036854771712, None), (1 << 30, 1 << 30)])
def test_a_container_of_version_1_without_a_namespace(tmp_path: Path, limit: int, memory: int | None) -> None:
    """Docker without a cgroup namespace: the group's path is the host's, and its folder is mounted as the root."""
    mounts = "\n".join(
        f"{number} 1 0:{number} /docker/abc /sys/fs/cgroup/{name} ro - cgroup cgroup rw,{name}"
        for number, name in enumerate(("cpu,cpuacct", "cpuset", "memory"), start=30)
    )
    files = tree(
        tmp_path,
        {
            "proc/self/mountinfo": mounts,
            "proc/self/cgroup": "3:memory:/docker/abc\n2:cpuset:/docker/abc\n1:cpu,cpuacct:/docker/abc",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpuset/cpuset.cpus": "4-7",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(limit),
        },
    )
    found = read_limits(files, None, {})
    assert (found.quota, found.memory, found.cpus) == (2.5, memory, frozenset({4, 5, 6, 7}))


@pytest.mark.parametrize("path", ["/docker/abc", "/other/abc", "/../other", "/"])
@pytest.mark.parametrize("kind", ["cgroup2", "cgroup"])
def test_a_group_that_is_not_mounted_has_the_mounts_limits(tmp_path: Path, path: str, kind: str) -> None:
    """A container with a namespace of its own may see a path of the host, or one outside of its namespace."""
    options, controllers = ("rw", "") if kind == "cgroup2" else ("rw,cpu", "cpu")
    files = tree(
        tmp_path,
        {
            "proc/self/mountinfo": f"30 23 0:26 / /sys/fs/cgroup rw - {kind} {kind} {options}",
            "proc/self/cgroup": f"1:{controllers}:{path}",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/other/cpu.max": "50000 100000",
            "sys/fs/cgroup/other/cpu.cfs_quota_us": "50000",
            "sys/fs/other/cpu.max": "50000 100000",
            "sys/fs/other/cpu.cfs_quota_us": "50000",
        },
    )
    assert read_limits(files, None, {}).quota == 1.5


STEP = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"SLURM_CPUS_ON_NODE": "4"}, None),
        ({"SLURM_JOB_ID": "1"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "1"}, 1),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4"}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "all"}, None),
        # What srun set on two nodes with two hardware threads a core: 2 tasks of 2 CPUs each, without and with --hint.
        ({**STEP, "SLURM_CPUS_ON_NODE": "4"}, 4),
        ({**STEP, "SLURM_CPUS_ON_NODE": "8", "SLURM_THREADS_PER_CORE": "1"}, 4),
        ({**STEP, "SLURM_CPUS_ON_NODE": "2", "SLURM_THREADS_PER_CORE": "1"}, 2),
    ],
)
def test_without_cgroups_only_slurm_limits(env: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    assert read_limits(Files(tmp_path), None, env) == Limits(counted=expected)


@pytest.mark.job
def test_a_real_container_of_one_core(cgroup: ControlGroup) -> None:
    """A real CPU quota: tests/pinning/test_pinned_jobs.py."""
    last = max(os.sched_getaffinity(0))
    cgroup.limit("cpuset", cpuset__cpus=str(last))
    cgroup.limit("memory", memory__max=str(2 << 30), memory__limit_in_bytes=str(2 << 30))
    shown = jobs.completed(cgroup.inside([sys.executable, "-m", "cpudist", "plan"]), 60).stdout
    assert f"this process may use only the CPUs {last}\nthis process may use only 2 GB of memory\n" in shown
    assert f"rank 0 computes with 1 thread on CPU {last}\n" in shown


@given(st.integers(1, 4), st.integers(1, 8), st.booleans(), st.integers(1, 8), st.none() | st.integers(1, 160))
def test_cores_to_spare(processes: int, cores: int, pinned: bool, threads: int, quarters: int | None) -> None:
    """Pinned processes have CPUs of their own; others share the machine's evenly, and all share a quota."""
    everything = list(range(processes * cores))
    cpus = [everything[rank * cores : (rank + 1) * cores] if pinned else everything for rank in range(processes)]
    share = cores if quarters is None else min(cores, quarters // (4 * processes))
    for own in cpus:
        assert cores_to_spare(own, cpus, threads, quota=quarters and quarters / 4) == share - threads


def test_addresses_of_an_interface() -> None:
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    assert set(addresses()) <= own | {"127.0.0.1"}
    loopback = addresses("lo")
    assert loopback[0] == "127.0.0.1"
    assert set(loopback) <= {"127.0.0.1", "::1"}
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(UserError, match=r"no network interface eth77 .* give --interface one of .*lo"):
        addresses("eth77")
