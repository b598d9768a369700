"""Memory between steps: the C library's allocator gives large blocks back to the kernel, and asks for them again."""

from __future__ import annotations

import ctypes
import os
import platform

# <malloc.h> of the GNU C library
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1

_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def keep_freed() -> bool:
    """Let memory that is freed stay with the process, for the next step to use.

    By default every large tensor is mapped anew, and the kernel clears each of its pages, on first touch, in every
    step (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD). This is for the whole process, from now on.

    Returns:
        False where nothing was done: the C library is not GNU's, or the job's environment tells it what to do.
    """
    if platform.libc_ver()[0] != "glibc" or any(variable in os.environ for variable in _VARIABLES):
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, _NEVER))
