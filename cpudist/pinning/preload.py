"""Libraries that have to be there when a process starts: a faster allocator, and Intel's OpenMP where it is asked for.

glibc gives large tensors back to the kernel, and asks for them again and has every page cleared in each step: with
tcmalloc a training step takes a fifth to a quarter less time. Intel's OpenMP has GNU's functions as well, so that torch
computes with it (docs/placement.md has figures of both). The process starts once more, as itself: same process id,
arguments, files and standard input.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from cpudist.errors import UserError

OpenMP = Literal["torch", "intel"]  # torch's own, which is GNU's in the packages of PyPI

_TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_INTEL_OPENMP = ("libiomp5.so",)
# Set to the process id, which stays: a process that a rank starts inherits the variable, and is not meant.
_DONE = "CPUDIST_PRELOADED"
# Whoever sets one of these has decided about the allocator.
_DECIDED = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF")
_DECIDED_PREFIX = "MALLOC_"


def to_preload(variables: Mapping[str, str], openmp: OpenMP = "torch") -> tuple[Path, ...]:
    """What this process is to have that it has not; nothing once it has started again.

    Raises:
        UserError: Intel's OpenMP is asked for and cannot be had.
    """
    if variables.get(_DONE) == str(os.getpid()):
        return ()
    allocator = wanted_allocator(variables)
    wanted = [] if allocator is None else [allocator]
    if openmp == "intel":
        wanted.append(_intel_openmp(variables))
    return tuple(wanted)


def wanted_allocator(variables: Mapping[str, str]) -> Path | None:
    """The allocator to preload; None where the user has decided, or there is none."""
    return None if allocator_decided(variables) else _installed(_TCMALLOC)


def _intel_openmp(variables: Mapping[str, str]) -> Path:
    found = _installed(_INTEL_OPENMP)
    if found is None:
        raise UserError(
            f"Intel's OpenMP is not installed in {sys.prefix}; pip install intel-openmp, or leave out --openmp"
        )
    if loaded := variables.get("LD_PRELOAD"):
        raise UserError(f"LD_PRELOAD={loaded} is set and stays; put {found} into it, or leave out --openmp")
    return found


def _installed(names: Sequence[str]) -> Path | None:
    folders = [Path(sys.prefix) / "lib", Path("/usr/lib64"), Path("/usr/lib")]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        folders.insert(1, Path("/usr/lib") / multiarch)
    return next((folder / name for folder in folders for name in names if (folder / name).exists()), None)


def allocator_decided(variables: Mapping[str, str]) -> str | None:
    """The variable by which the user has decided about the allocator, if there is one."""
    return next((name for name in variables if name in _DECIDED or name.startswith(_DECIDED_PREFIX)), None)


def start_again(libraries: Sequence[Path]) -> NoReturn:
    """Replace this process by itself with `libraries` preloaded. Nothing may have been read from standard input yet."""
    variables = {**os.environ, "LD_PRELOAD": ":".join(map(str, libraries)), _DONE: str(os.getpid())}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)
