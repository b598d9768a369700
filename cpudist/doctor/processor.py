"""Number formats of the CPU, its clock speed, and the kernel's clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpudist.finding import Finding
from cpudist.topology import sysfs
from cpudist.topology.kernel_files import Files
from cpudist.topology.number_formats import BFLOAT16, FLOAT16, features, units

_CPUS = "sys/devices/system/cpu"
_SOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
# Read without a system call. The others (hpet, acpi_pm) take microseconds, thousands of times in a step.
_FAST_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase", "riscv_clocksource")


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the number formats of the CPU, its frequency governor and the clock source."""
    yield from _number_formats(files)
    yield _governor(files)
    yield from _clock_source(files)


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
