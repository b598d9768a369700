"""On which NUMA node the kernel places the pages of a process: set_mempolicy(2).

Containers often refuse these calls (Docker's seccomp profile without CAP_SYS_NICE).
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
    """Return the policy of this thread, which its threads and processes inherit; None if the kernel refuses.

    "default" places pages on the local node, as "local" does.
    """
    mode = ctypes.c_int(-1)
    if _call(1, ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0)) != 0:
        return None
    number = mode.value & ~_MODE_FLAGS
    return _NAMES[number] if 0 <= number < len(_NAMES) else str(number)


def allocate_locally() -> bool:
    """Place pages on the node of the CPU that touches them first.

    The default does so too, but unmaps pages now and then to see which node uses them (NUMA balancing). That costs
    pinned threads time and gains nothing.

    Returns:
        False if the kernel refuses, or another policy has been set, which is kept.
    """
    if memory_policy() != "default":
        return False
    return _call(0, ctypes.c_int(_LOCAL), None, ctypes.c_ulong(0)) == 0


def forget_policy() -> bool:
    """Undo `allocate_locally`: return to the kernel's default policy. Return False if the kernel refuses."""
    return _call(0, ctypes.c_int(_DEFAULT), None, ctypes.c_ulong(0)) == 0


def _call(which: int, *arguments: object) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        return -1
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(numbers[which]), *arguments))
