"""What limits a process: cgroups of both versions as files, and in real ones where they can be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_group import ControlGroup, control_group

from cpudist.topology.kernel_files import Files
from cpudist.topology.limits import Throttling, read_limits


def tree(root: Path, files: dict[str, str]) -> Files:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return Files(root)


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def test_version_2_takes_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/kubepods.slice/pod1"
    files = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/kubepods.slice/pod1/container",
            "sys/fs/cgroup/cpu.max": "max 100000",
            f"{pod}/cpu.max": "150000 100000",
            f"{pod}/memory.max": str(8 << 30),
            f"{pod}/container/cpu.max": "max 100000",
            f"{pod}/container/memory.max": "max",
            f"{pod}/container/cpuset.cpus.effective": "0-63",
            f"{pod}/container/cpu.stat": "usage_usec 1\nnr_periods 10\nnr_throttled 4\nthrottled_usec 9",
        },
    )
    found = read_limits(files, None, {})
    assert (found.quota, found.memory, found.cpus) == (1.5, 8 << 30, frozenset(range(64)))
    assert found.throttling == Throttling(periods=10, throttled=4)


def test_a_container_of_version_1_without_a_namespace(tmp_path: Path) -> None:
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
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    found = read_limits(files, None, {})
    assert (found.quota, found.memory, found.cpus) == (2.5, None, frozenset({4, 5, 6, 7}))


def test_no_cgroups_limit_nothing(tmp_path: Path) -> None:
    limits = read_limits(Files(tmp_path), affinity=None, env={})
    assert (limits.cpus, limits.quota, limits.memory, limits.counted) == (None, None, None, None)


def test_affinity_and_cpuset_are_intersected(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {
            "proc/self/mountinfo": V2,
            "proc/self/cgroup": "0::/",
            "proc/self/status": "Name:\tpython\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3",
            "sys/fs/cgroup/cpuset.cpus.effective": "2-9",
        },
    )
    assert read_limits(files, affinity=None, env={}).cpus == {2, 3}
    assert read_limits(files, affinity=frozenset({3, 9}), env={}).cpus == {3, 9}


STEP = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"SLURM_CPUS_ON_NODE": "4"}, None),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4"}, 4),
        ({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "all"}, None),
        # What srun set on two nodes with two hardware threads a core: 2 tasks of 2 CPUs each, without and with --hint.
        ({**STEP, "SLURM_CPUS_ON_NODE": "4"}, 4),
        ({**STEP, "SLURM_CPUS_ON_NODE": "8", "SLURM_THREADS_PER_CORE": "1"}, 4),
        ({**STEP, "SLURM_CPUS_ON_NODE": "2", "SLURM_THREADS_PER_CORE": "1"}, 2),
    ],
)
def test_what_slurm_has_counted(env: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    assert read_limits(Files(tmp_path), None, env).counted == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "4096"}, 4 << 30),
        ({"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}, 2 << 30),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_NODE": "16G"}, None),
        ({}, None),
    ],
)
def test_memory_that_slurm_has_given(env: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    assert read_limits(Files(tmp_path), None, env).memory is None
    assert read_limits(Files(tmp_path), None, {"SLURM_JOB_ID": "1", **env}).memory == expected


def test_the_smaller_memory_limit_counts(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        {"proc/self/mountinfo": V2, "proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(3 << 30)},
    )
    for megabytes, expected in (("2048", 2 << 30), ("4096", 3 << 30)):
        env = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": megabytes}
        assert read_limits(files, None, env).memory == expected


_ASK = """
import json
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import PlanOptions, make_plan
machine = this_machine({})
plan = make_plan(machine, PlanOptions())
limits = machine.limits
print(json.dumps({"cpus": sorted(limits.cpus), "quota": limits.quota, "memory": limits.memory, "pinned": plan.pinned,
                  "ranks": [[list(rank.cpus), rank.omp_threads] for rank in plan.ranks], "idle": plan.idle_cpus}))
"""


@pytest.fixture
def cgroup() -> Iterator[ControlGroup]:
    with control_group() as made:
        yield made


def in_cgroup(cgroup: ControlGroup) -> dict[str, object]:
    """What a process in it finds."""
    done = subprocess.run(
        cgroup.inside([sys.executable, "-c", _ASK]), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.job
def test_a_real_quota_of_one_and_a_half(cgroup: ControlGroup) -> None:
    cgroup.limit("cpu", cpu__max="150000 100000", cpu__cfs_quota_us="150000")
    cgroup.limit("memory", memory__max=str(2 << 30), memory__limit_in_bytes=str(2 << 30))
    found = in_cgroup(cgroup)
    assert found["quota"] == 1.5
    assert found["memory"] == 2 << 30
    assert found["cpus"] == sorted(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) > 1:
        assert [threads for _, threads in found["ranks"]] == [1]  # type: ignore[attr-defined]
        assert found["pinned"] is False


@pytest.mark.job
def test_a_real_container_of_one_core(cgroup: ControlGroup) -> None:
    last = max(os.sched_getaffinity(0))
    cgroup.limit("cpuset", cpuset__cpus=str(last))
    found = in_cgroup(cgroup)
    assert (found["cpus"], found["ranks"], found["idle"]) == ([last], [[[last], 1]], [])
    assert found["pinned"] is True
