"""The ccl backend as cpudist sees it: Intel's own binding where it fits, ours otherwise."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

from cpudist.backends.base import Seat
from cpudist.backends.ccl import library
from cpudist.backends.ccl.register import register
from cpudist.backends.ccl.toolchain import find_oneccl
from cpudist.backends.ddp import DdpBackend
from cpudist.errors import UserError

_INTEL = "oneccl_bindings_for_pytorch"
_DRAIN_SECONDS = 5.0  # for what nobody has waited for, once all ranks have come to their end


def intel_binding() -> str | None:
    """The version of Intel's oneccl_bindings_for_pytorch when it is installed and made for this torch, else None."""
    if find_spec(_INTEL) is None:
        return None
    for name in ("oneccl_bind_pt", _INTEL):
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        # Its C++ belongs to one torch release, which its version repeats: 2.8.0+cpu for torch 2.8.
        return found if found.split(".")[:2] == torch.__version__.split(".")[:2] else None
    return None


class CclBackend(DdpBackend):
    name = "ccl"

    def __init__(self) -> None:
        self._intel = intel_binding()

    def unavailable(self) -> str | None:
        if self._intel:
            return None
        try:
            library.load()
        except UserError as error:
            return str(error)
        return None

    def start(self, seat: Seat) -> None:
        if self._intel:
            for name, value in library.settings(library.choose_transport()).items():
                os.environ.setdefault(name, value)
            __import__(_INTEL)  # registers "ccl" with torch
        else:
            register()
        super().start(seat)

    def ddp_options(self) -> dict[str, Any]:
        if self._intel or library.load().polls():
            return {}
        # Without a thread that polls no bucket overlaps with computing, so few large ones are fastest
        # (docs/performance.md: 6 % of a step in float32, 20 % in bfloat16).
        return {"bucket_cap_mb": 100}

    def _bound(self, group: Any, seconds: float) -> None:
        if self._intel:
            raise UserError(f"{_INTEL} cannot change its timeout; give it at the start: cpudist-train --timeout")
        library.load().set_timeout(group, seconds)

    def stop(self) -> None:
        if not self._intel:
            library.load().drain(_DRAIN_SECONDS)
        super().stop()

    def transport(self) -> str | None:
        return os.environ.get("CCL_ATL_TRANSPORT")

    def details(self) -> dict[str, str]:
        if self._intel:
            return {"ccl_implementation": f"{_INTEL} {self._intel}"}
        # What this rank handed to each transport so far; "hierarchy" is shared memory inside a machine, oneCCL across.
        carried = {
            f"carried_by_{transport}": f"{calls} calls, {size} bytes"
            for transport, (calls, size) in library.load().traffic().items()
        }
        return {"ccl_implementation": "cpudist", "oneccl": find_oneccl().version, **carried}

    def communication_seconds(self) -> float | None:
        return None if self._intel else float(library.load().blocked_seconds())
