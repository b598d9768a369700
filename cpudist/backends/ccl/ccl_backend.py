"""The ccl backend: process groups of cpudist's own extension module, on oneCCL, MPI and shared memory."""

from typing import Any

from torch.distributed import Store
from torch.nn.parallel import DistributedDataParallel

from cpudist import launchers
from cpudist.backends.ccl import extension, intel
from cpudist.backends.ccl.ccl_group import chosen_transports
from cpudist.backends.ccl.compressed_gradients import CompressedGradients, average
from cpudist.backends.ccl.register import register
from cpudist.backends.interface import Call, Calls
from cpudist.backends.process_group import GroupRanks, ProcessGroupBackend, groups
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.world import World

_DRAIN_SECONDS = 5.0  # Time limit at a job's end for completing the calls in flight, such as sends.


class CclBackend(ProcessGroupBackend):
    """`torch.distributed` on oneCCL."""

    name = "ccl"
    compressions = frozenset({"bf16", "int8", "powersgd"})

    def __init__(self) -> None:
        self._across_hosts = False
        self._shares_memory = False  # whether ranks of a host communicate through shared memory

    def unavailable(self) -> str | None:
        try:
            place = launchers.detect().placement()
            on_one_host = place.node_count == 1 or place.size in (1, place.local_size)
            # Only starting MPI shows whether the ABI of the launcher's MPI is supported.
            if extension.requested_transport().startswith("mpi") and not on_one_host:
                extension.start_mpi()
        except UserError as error:
            return str(error)
        return None

    def start(self, world: World, store: Store, timeout: float) -> None:
        register()  # again, because Intel's binding registers its own ccl if a script imports it
        if other := intel.installed():
            intel.hide_installed()
            if world.rank == 0:
                say(f"the backend ccl is cpudist's own; {other} is installed and not used")
        self._across_hosts = world.node_count > 1
        local_size, unequal = divmod(world.size, world.node_count)
        may_share, _ = chosen_transports({extension.requested_transport()})
        self._shares_memory = may_share and local_size > 1 and not unequal
        super().start(world, store, timeout)

    def ddp_options(self) -> dict[str, Any]:
        options = super().ddp_options()
        if self._across_hosts:
            # Only the last bucket does not overlap with computing, so small ones are fastest (docs/slow-networks.md).
            return {**options, "bucket_cap_mb": 5}
        if extension.load().polls():
            return options
        # Inside a machine, without a polling thread, no bucket overlaps with computing, so few large buckets are
        # fastest (docs/performance.md: they save 6 % of a step in float32, 20 % in bfloat16).
        return {**options, "bucket_cap_mb": 100}

    def _register_hook(self, model: DistributedDataParallel, group: Any, scheme: str) -> None:
        if scheme in ("bf16", "int8"):
            model.register_comm_hook(CompressedGradients(group, scheme), average)
        else:
            super()._register_hook(model, group, scheme)

    def compressed_bytes(self) -> tuple[int, int] | None:
        before, after = extension.load().converted()
        return (before, after) if before else super().compressed_bytes()

    def _bound(self, group: Any, seconds: float) -> None:
        extension.load().set_timeout(group, seconds)

    def stop(self) -> None:
        extension.load().drain(_DRAIN_SECONDS)
        super().stop()
        intel.hide_installed(False)

    def transport(self) -> str | None:
        found: str | None = extension.load().transport
        return found

    def carriers(self) -> str | None:
        if not self._shares_memory:
            return self.transport()
        return f"shared memory and {self.transport()}" if self._across_hosts else "shared memory"

    def details(self) -> dict[str, Any]:
        module = extension.load()
        carried = {  # This rank's traffic on each transport. An allreduce between hosts may use two transports.
            f"carried_by_{transport}": f"{calls} calls, {size} bytes"
            for transport, (calls, size) in module.traffic().items()
        }
        if shares := module.bytes_of_threads():
            carried["computing_threads_carried"] = f"{min(shares)} to {max(shares)} bytes each, {len(shares)} threads"
        oneccl = module.library_version() or "not installed: MPI carries the messages between hosts"
        return {"ccl_implementation": "cpudist", "oneccl": oneccl, "sums": module.sums, **carried}

    def communication_seconds(self) -> float | None:
        return float(extension.load().blocked_seconds()) + (super().communication_seconds() or 0.0)

    def communicated_bytes(self) -> int | None:
        return sum(int(size) for _, size in extension.load().traffic().values())

    def has_failed(self) -> bool:
        return not extension.load().usable()

    def calls(self) -> Calls | None:
        found = extension.load().calls()
        if found is None:
            return None
        under_way, last = found
        known = groups()
        return Calls(
            tuple(_call(fields, known.get(fields.pop("group"))) for fields in under_way),
            tuple(
                Call(name, known[group].name, known[group].ranks, sequence)
                for group, (name, sequence) in last.items()
                if group in known  # otherwise the group has been destroyed
            ),
            tuple(group.name for key, group in known.items() if key not in last),
        )


def _call(fields: dict[str, Any], group: GroupRanks | None) -> Call:
    """Convert a call that the extension reports, and its `peer` from a rank of the group to a rank of the job."""
    peer = fields.pop("peer", None)
    if peer is not None and (peer < 0 or group is None):
        peer = None
    elif peer is not None and group is not None and group.ranks is not None:
        peer = group.ranks[peer]
    group = group or GroupRanks("(destroyed)", ())
    return Call(**fields, group=group.name, ranks=group.ranks, peer=peer)
