"""CPU numbers as the kernel and hwloc write them: lists such as ``0-3,8`` and masks such as ``ff,00000000``."""

from collections.abc import Iterable

LAST_CPU = (1 << 16) - 1  # Linux has 8192 CPUs at most; a larger number is a mistake in a file
_WORD = 32  # bits between two commas of a mask


def parse_list(text: str) -> frozenset[int]:
    """Read a list such as /sys/devices/system/cpu/online, or raise ValueError; an empty text is an empty list."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if part.strip():
            first, _, last = part.partition("-")
            if int(last or first) > LAST_CPU:
                raise ValueError(f"no machine has a CPU {last or first}")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def parse_mask(text: str) -> frozenset[int]:
    """Read a mask of hexadecimal 32-bit words, the highest first, with or without 0x. An empty word is zero.

    Raises ValueError for another text, also for masks that hwloc calls infinite (``0xf...f``).
    """
    value = 0
    for word in text.strip().split(","):
        value = (value << _WORD) | int(word or "0", 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def format_list(cpus: Iterable[int]) -> str:
    """Return CPUs as a list of numbers and ranges, such as ``0-3,8``."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)
