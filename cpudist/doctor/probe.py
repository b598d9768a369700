"""A fresh process that loads what a rank loads, and what it then finds in itself: this process must stay as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cpudist.backends.ccl.build import find_built
from cpudist.doctor.versions import companions_that_fit
from cpudist.errors import UserError

_SECONDS = 120
# The module is loaded and not started: under a launcher oneCCL would wait for the other ranks.
_ASK = """
import ctypes, importlib, json, sys
import torch
built, *names = sys.argv[1:]
for name in names:
    importlib.import_module(name)
error = ""
if built:
    try:
        ctypes.CDLL(built)
    except OSError as problem:
        error = str(problem)
print()
print(json.dumps({"ccl": error, "maps": open("/proc/self/maps").read()}))
"""


@dataclass(frozen=True)
class Loaded:
    """What a process with torch, its companions and the ccl backend has mapped, or why it could not.

    Attributes:
        maps: the text of its /proc/self/maps; empty where torch cannot be imported.
        torch_error: why torch, or a package made for it, cannot be imported.
        ccl_error: why the compiled ccl backend cannot be loaded, if there is one.
    """

    maps: str = ""
    torch_error: str = ""
    ccl_error: str = ""


def load(env: Mapping[str, str]) -> Loaded:
    """What a process with these variables finds; asked once for each of them."""
    return _load(tuple(sorted(env.items())))


@cache
def _load(variables: tuple[tuple[str, str], ...]) -> Loaded:
    try:
        built = str(find_built() or "")
    except UserError:  # there is no oneCCL
        built = ""
    # As a program's name would be found by, but nothing of the folder that the doctor happens to stand in.
    command = [sys.executable, "-c", _ASK, built, *companions_that_fit()]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=dict(variables)
        )
    except subprocess.TimeoutExpired:
        return Loaded(torch_error=f"it takes more than {_SECONDS} s")
    if asked.returncode != 0:
        return Loaded(torch_error=(asked.stderr.strip().splitlines() or [f"exit status {asked.returncode}"])[-1])
    found = json.loads(asked.stdout.splitlines()[-1])
    return Loaded(found["maps"], ccl_error=found["ccl"])
