"""The ccl backend as cpudist sees it: Intel's own binding where it fits, ours otherwise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from cpudist.backends.calls import Call, Calls
from cpudist.backends.ccl import extension, intel
from cpudist.backends.ccl.register import register
from cpudist.backends.ccl.toolchain import find_oneccl
from cpudist.backends.process_group import Members, ProcessGroupBackend, groups
from cpudist.errors import UserError
from cpudist.rendezvous import startup

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.world import World

_DRAIN_SECONDS = 5.0  # for what nobody has waited for, once all ranks have come to their end


class CclBackend(ProcessGroupBackend):
    """`torch.distributed` on oneCCL."""

    name = "ccl"

    def __init__(self) -> None:
        self._intel = intel.binding(torch.__version__)
        self._across_hosts = False

    def unavailable(self) -> str | None:
        if self._intel:
            return None
        try:
            extension.load()
        except UserError as error:
            return str(error)
        return None

    def start(self, world: World, store: Store, timeout: float) -> None:
        if self._intel:
            extension.apply_settings()
            __import__(intel.PACKAGE)  # registers "ccl" with torch
        else:
            register()
        self._across_hosts = world.node_count > 1
        super().start(world, store, timeout)

    def ddp_options(self) -> dict[str, Any]:
        options = super().ddp_options()
        if self._intel or self._across_hosts or extension.load().polls():
            return options
        # Inside a machine, without a thread that polls, no bucket overlaps with computing, so few large ones are
        # fastest (docs/performance.md: 6 % of a step in float32, 20 % in bfloat16).
        return {**options, "bucket_cap_mb": 100}

    def averages(self) -> bool:
        return self._intel is None

    def _bound(self, group: Any, seconds: float) -> None:
        if self._intel:
            raise UserError(f"{intel.PACKAGE} cannot change its timeout; give it at the start: cpudist-train --timeout")
        extension.load().set_timeout(group, seconds)

    def stop(self) -> None:
        if not self._intel:
            extension.load().drain(_DRAIN_SECONDS)
        super().stop()

    def transport(self) -> str | None:
        if self._intel:
            return os.environ.get("CCL_ATL_TRANSPORT")
        return extension.transport()

    def provider(self) -> str | None:
        if self.transport() == "mpi":
            return startup.provider()
        return None if self._intel else "+".join(sorted(extension.load().providers())) or None

    def details(self) -> dict[str, Any]:
        if self._intel:
            return {"ccl_implementation": f"{intel.PACKAGE} {self._intel}"}
        # What this rank handed to each transport so far; "hierarchy" is shared memory inside a machine, oneCCL across;
        # "numa_hierarchy" shared memory inside a NUMA node, then across those of the machine.
        carried = {
            f"carried_by_{transport}": f"{calls} calls, {size} bytes"
            for transport, (calls, size) in extension.load().traffic().items()
        }
        return {"ccl_implementation": "cpudist", "oneccl": find_oneccl().version, **carried}

    def communication_seconds(self) -> float | None:
        return None if self._intel else float(extension.load().blocked_seconds())

    def calls(self) -> Calls | None:
        found = None if self._intel else extension.load().calls()
        if found is None:
            return None
        under_way, last = found
        known = groups()
        return Calls(
            tuple(_call(fields, known.get(fields.pop("group"))) for fields in under_way),
            tuple(
                Call(name, known[group].name, known[group].ranks, sequence)
                for group, (name, sequence) in last.items()
                if group in known  # otherwise it has been destroyed
            ),
        )


def _call(fields: dict[str, Any], group: Members | None) -> Call:
    """A call as the extension describes it; its peer counts in the group, ours in the job."""
    peer = fields.pop("peer", None)
    if peer is not None and (peer < 0 or group is None):
        peer = None
    elif peer is not None and group is not None and group.ranks is not None:
        peer = group.ranks[peer]
    group = group or Members("(destroyed)", ())
    return Call(**fields, group=group.name, ranks=group.ranks, peer=peer)
