"""On which NUMA node the kernel puts a process's pages: set_mempolicy(2).

Containers often refuse these calls (Docker's seccomp profile without CAP_SYS_NICE), so each one may answer None.
"""

from __future__ import annotations

import ctypes
import platform

# System call numbers: x86-64 has its own, all newer architectures share one table.
_NUMBERS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236)}
_NAMES = ("default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted-interleave")
_DEFAULT, _LOCAL = _NAMES.index("default"), _NAMES.index("local")
_MODE_FLAGS = 0xE000  # what set_mempolicy takes in the mode's upper bits


def memory_policy() -> str | None:
    """The policy of this thread, which threads and processes inherit: "default" is local too; None if it is refused."""
    mode = ctypes.c_int(-1)
    if _call(1, ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0)) != 0:
        return None
    number = mode.value & ~_MODE_FLAGS
    return _NAMES[number] if 0 <= number < len(_NAMES) else str(number)


def allocate_locally() -> bool:
    """Ask for pages on the node of the CPU that touches them first.

    That is the default as well, but pages under the default are unmapped now and then to see who uses them (NUMA
    balancing), which pinned threads only pay for.

    Returns:
        False where it is refused, or somebody has set another policy, which stays.
    """
    if memory_policy() != "default":
        return False
    return _call(0, ctypes.c_int(_LOCAL), None, ctypes.c_ulong(0)) == 0


def forget_policy() -> bool:
    """Take `allocate_locally` back: from now on the kernel's default. Returns: False where it is refused."""
    return _call(0, ctypes.c_int(_DEFAULT), None, ctypes.c_ulong(0)) == 0


def _call(which: int, *arguments: object) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return -1
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[which]), *arguments))
