"""Clock speed and the clock itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpudist.doctor.finding import Finding
from cpudist.machine import sysfs
from cpudist.machine.files import Files

_CPUS = "sys/devices/system/cpu"
_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without a system call; the others (hpet, acpi_pm) take microseconds, thousands of times in a step.
_FAST_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase", "riscv_clocksource")


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """The frequency governor and the clock source."""
    drivers = {files.read(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_driver") for cpu in sysfs.online_cpus(files)}
    governors = {files.read(f"{_CPUS}/cpu{cpu}/cpufreq/scaling_governor") for cpu in sysfs.online_cpus(files)} - {None}
    # With these drivers the processor itself chooses, and powersave is what they call it.
    self_governed = drivers <= {"intel_pstate", "amd-pstate-epp"}
    slow = ", ".join(sorted(str(governor) for governor in governors if governor != "performance"))
    if slow and not self_governed:
        yield Finding(
            "warning",
            "governor",
            f"the CPUs' frequency governor is {slow}: cores start each burst of work slowly",
            "as root: cpupower frequency-set --governor performance",
        )
    else:
        chosen = ", ".join(sorted(map(str, governors)))
        nobody = "none: firmware, or the host of this virtual machine, chooses the clock speed"
        yield Finding("ok", "governor", f"{chosen}: the processor chooses by itself" if slow else chosen or nobody)
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
