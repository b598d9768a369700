"""CPUs and memory left to this process, and its CPU quota; the CPU's number formats and speed; the kernel's clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from cpudist.console import number_of, size
from cpudist.errors import Finding
from cpudist.topology import sysfs
from cpudist.topology.cpulist import format_list
from cpudist.topology.kernel_files import Files
from cpudist.topology.limits import Throttling, read_limits
from cpudist.topology.machine import BFLOAT16, FLOAT16, features, units

_CPUS = "sys/devices/system/cpu"
_RARELY = 0.01  # of all periods of a CPU quota
_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without a system call. The others (hpet, acpi_pm) take microseconds, thousands of times in a step.
_FAST_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase", "riscv_clocksource")


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check this process's share of the machine, the number formats of the CPU, its governor and the clock source."""
    yield from _share(files, env)
    yield from _number_formats(files)
    yield _governor(files)
    yield from _clock_source(files)


def _share(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the CPUs, the CPU quota and the memory limit of this process."""
    limits = read_limits(files, frozenset(os.sched_getaffinity(0)), env)
    throttling = limits.throttling
    if throttling and throttling.throttled:
        yield _stopped(throttling)
    if limits.quota is not None:
        yield _quota(limits.quota)
        if throttling and not throttling.throttled:
            yield Finding("ok", "throttling", f"in none of {throttling.periods} periods (nr_throttled)")
    else:
        yield Finding("ok", "CPU quota", "none")
    online, own = sysfs.online_cpus(files), limits.cpus or frozenset()
    some = "all" if own == online else f"{format_list(own)} of"
    counted = f", of which Slurm has given {limits.counted} to this job" if limits.counted else ""
    yield Finding("ok", "CPUs", f"this process may use {some} {len(online)} CPUs{counted}")
    if limits.memory is not None:
        yield Finding("ok", "memory limit", f"{size(limits.memory)} for all ranks of this node together")


def _quota(quota: float) -> Finding:
    threads = max(int(quota), 1)
    what = f"a quota of {quota:g} CPUs: the ranks together get {number_of(threads, 'computing thread')}"
    if quota == threads:
        return Finding("ok", "CPU quota", what)
    return Finding("warning", "CPU quota", what, "ask for a whole number of CPUs: a fraction is not used")


def _stopped(throttling: Throttling) -> Finding:
    share = throttling.throttled / max(throttling.periods, 1)
    said = f"the CPU quota has stopped this container in {share:.1%} of {throttling.periods} periods (nr_throttled)"
    if share < _RARELY:
        return Finding("ok", "throttling", said)
    return Finding(
        "warning",
        "throttling",
        said,
        "start fewer threads (cpudist plan counts them by the quota), or raise the quota (limits.cpu, docker --cpus)",
    )


def _number_formats(files: Files) -> Iterator[Finding]:
    found = features(files)
    if found is None:
        yield Finding(
            "warning", "CPU", "/proc/cpuinfo does not list the features of this CPU", "compare --bf16 with float32"
        )
        return
    bfloat16, float16 = units(found, BFLOAT16), units(found, FLOAT16)
    if bfloat16:
        also = f"; float16 by {' and '.join(float16)}" if float16 else "; no float16"
        yield Finding("ok", "CPU", f"bfloat16 by {' and '.join(bfloat16)}: --bf16 is faster than float32{also}")
    else:
        yield Finding(
            "warning",
            "CPU",
            "this CPU has no bfloat16 arithmetic (AVX512_BF16, AMX): --bf16 would be slower than float32",
            "train in float32",
        )
    if "hypervisor" in found:
        yield Finding("ok", "virtual machine", "cores may be shared with other machines: timings vary")


def _governor(files: Files) -> Finding:
    folders = [f"{_CPUS}/cpu{cpu}/cpufreq" for cpu in sysfs.online_cpus(files)]
    drivers = {files.read(f"{folder}/scaling_driver") for folder in folders}
    governors = {found for folder in folders if (found := files.read(f"{folder}/scaling_governor"))}
    slow = ", ".join(sorted(governors - {"performance"}))
    if not governors:
        return Finding("ok", "governor", "none: firmware, or the host of this virtual machine, sets the clock speed")
    # With these drivers the processor itself chooses the clock speed, and they call that powersave.
    if slow and drivers <= {"intel_pstate", "amd-pstate-epp"}:
        return Finding("ok", "governor", f"{slow}: the processor sets its clock speed itself")
    if slow:
        return Finding(
            "warning",
            "governor",
            f"the CPUs' frequency governor is {slow}: cores start each burst of work slowly",
            "as root: cpupower frequency-set --governor performance",
        )
    return Finding("ok", "governor", "performance")


def _clock_source(files: Files) -> Iterator[Finding]:
    source = files.read(_SOURCE)
    if source and source not in _FAST_SOURCES:
        yield Finding(
            "warning",
            "clock source",
            f"the kernel reads the time from {source}, which is slow",
            "boot with clocksource=tsc (and tsc=reliable) if the CPU's counter is constant",
        )
    elif source:
        yield Finding("ok", "clock source", source)
