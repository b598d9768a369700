"""tcmalloc in the place of the C library's allocator, where it is installed.

glibc gives large tensors back to the kernel, and asks for them again and has every page cleared in each step: with
tcmalloc a training step takes a fifth to a quarter less time (docs/placement.md). It has to be there when a process
starts, so the process starts once more, as itself: same process id, arguments, files and standard input.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

_NAMES = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
# Set to the process id, which stays: a process that a rank starts inherits the variable, and is not meant.
_DONE = "CPUDIST_PRELOADED"
# Whoever sets one of these has decided about the allocator.
_DECIDED = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF")
_DECIDED_PREFIX = "MALLOC_"


def wanted_library(variables: Mapping[str, str]) -> Path | None:
    """The library to preload; None where the user has decided, there is none, or it has been done."""
    if variables.get(_DONE) == str(os.getpid()):
        return None
    if allocator_decided(variables):
        return None
    folders = [Path(sys.prefix) / "lib", Path("/usr/lib64"), Path("/usr/lib")]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        folders.insert(1, Path("/usr/lib") / multiarch)
    return next((folder / name for folder in folders for name in _NAMES if (folder / name).exists()), None)


def allocator_decided(variables: Mapping[str, str]) -> str | None:
    """The variable by which the user has decided about the allocator, if there is one."""
    return next((name for name in variables if name in _DECIDED or name.startswith(_DECIDED_PREFIX)), None)


def start_again(library: Path) -> NoReturn:
    """Replace this process by itself with `library` preloaded. Nothing may have been read from standard input yet."""
    variables = {**os.environ, "LD_PRELOAD": str(library), _DONE: str(os.getpid())}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)
