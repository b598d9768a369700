"""Read the kernel's files (/sys, /proc) of this machine or a copy, and CPU lists (``0-3,8``) and masks (``ff,0``)."""

from collections.abc import Iterable
from pathlib import Path

LAST_CPU = (1 << 16) - 1  # Linux has 8192 CPUs at most; a larger number is a mistake in a file
_WORD = 32  # bits between two commas of a mask


class Files:
    """Text files by their path from the root, such as ``sys/devices/system/cpu/online``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        """Return the file's text without white space around it; None if it is missing or may not be read."""
        try:
            text = (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:  # some of the kernel's files exist and cannot be read
            return None
        return text.strip("\0 \t\n")

    def names(self, folder: str) -> list[str]:
        """Return the names of a folder's entries; none if there is no such folder."""
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except OSError:
            return []


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
