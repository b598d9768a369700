"""What limits a process: cgroups of both versions as files, and in real ones where they can be made."""

import json
import os
import sys
from pathlib import Path

import jobs
import pytest
from control_group import ControlGroup

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
def test_a_group_whose_folder_is_not_mounted_has_the_limits_of_the_mount(tmp_path: Path, path: str, kind: str) -> None:
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


def test_no_cgroups_limit_nothing(tmp_path: Path) -> None:
    limits = read_limits(Files(tmp_path), affinity=None, env={})
    assert (limits.cpus, limits.quota, limits.memory, limits.counted) == (None, None, None, None)


def test_affinity_and_cpuset_are_intersected(tmp_path: Path) -> None:
    files = tree(
        tmp_path, {"proc/self/mountinfo": V2, "proc/self/cgroup": "0::/", "sys/fs/cgroup/cpuset.cpus.effective": "2-9"}
    )
    assert read_limits(files, affinity=frozenset({3, 9}), env={}).cpus == {3, 9}


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
def test_what_slurm_has_counted(env: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    assert read_limits(Files(tmp_path), None, env).counted == expected


_ASK = """
import json
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import PlanOptions, make_plan
machine = this_machine({})
plan = make_plan(machine, PlanOptions())
limits = machine.limits
print(json.dumps({"cpus": sorted(limits.cpus), "memory": limits.memory, "pinned": plan.pinned,
                  "ranks": [[list(rank.cpus), rank.omp_threads] for rank in plan.ranks], "idle": plan.idle_cpus}))
"""


@pytest.mark.job
def test_a_real_container_of_one_core(cgroup: ControlGroup) -> None:
    """A real CPU quota: tests/pinning/test_pinned_jobs.py."""
    last = max(os.sched_getaffinity(0))
    cgroup.limit("cpuset", cpuset__cpus=str(last))
    cgroup.limit("memory", memory__max=str(2 << 30), memory__limit_in_bytes=str(2 << 30))
    done = jobs.completed(cgroup.inside([sys.executable, "-c", _ASK]), 60)
    found = json.loads(done.stdout)
    assert (found["cpus"], found["ranks"], found["idle"]) == ([last], [[[last], 1]], [])
    assert (found["memory"], found["pinned"]) == (2 << 30, True)
