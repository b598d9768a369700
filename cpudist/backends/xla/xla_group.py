"""A c10d process group with two sides: one for tensors of the CPU, one for tensors of XLA devices.

So `torch.distributed`, DDP and libraries on them accept both kinds. CPU tensors, objects and barriers always go over
ccl or gloo. Tensors of a device go through the host to the same backend, or to the runtime's own group.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo, distributed_c10d
from torch.utils._pytree import tree_leaves, tree_map_only

from cpudist.backends.ccl.ccl_group import create_group
from cpudist.backends.xla.transfers import done, fetch, put

_CALLS = {  # For each call of c10d: the positions of its arguments with output tensors, and with input tensors.
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce"), ((0,), (0,))),
    **dict.fromkeys(("allgather", "gather", "scatter", "reduce_scatter", "alltoall"), ((0,), (1,))),
    **dict.fromkeys(("_allgather_base", "_reduce_scatter_base", "alltoall_base"), ((0,), (1,))),
    "send": ((), (0,)),
    **dict.fromkeys(("recv", "recv_anysource"), ((0,), ())),
}


class TwoSidedGroup(dist.ProcessGroup):
    """Process group that passes each call to the side of its tensors: `host` for CPU tensors, otherwise `device`.

    Both sides are c10d backends. Barriers go to `host`.
    """

    def __init__(self, host: Any, device: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.host = host
        self.device = device

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        return "xla"

    def _set_group_name(self, name: str) -> None:  # torch's own method fails: this group has no backends
        self._name = name

    @property
    def group_name(self) -> str:  # type: ignore[override]  # a NewType of str
        return self._name

    def barrier(self, opts: Any = None) -> Any:  # torch passes opts by name
        """Wait on the CPU for all ranks of the group."""
        return self.host.barrier(dist.BarrierOptions() if opts is None else opts)


def _by_side(name: str) -> Callable[..., Any]:
    def call(self: TwoSidedGroup, *args: Any) -> Any:
        on_cpu = all(tensor.device.type == "cpu" for tensor in _tensors(args))
        return getattr(self.host if on_cpu else self.device, name)(*args)

    return call


for _name in _CALLS:
    setattr(TwoSidedGroup, _name, _by_side(_name))


class ThroughHost:
    """Run c10d's calls for device tensors on `host`, a c10d backend for CPU tensors.

    The tensors are fetched, sent, awaited and put back, because c10d's futures cannot wait for a device that computes
    lazily.
    """

    def __init__(self, host: Any) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Callable[..., Any]:
        written, read = _CALLS[name]
        call = getattr(self._host, name)

        def through_host(*args: Any) -> Any:
            targets = _tensors([args[position] for position in written])
            if written == read and self._host.size() == 1:  # With one rank nothing changes, so nothing is computed yet.
                return done(targets)
            sources = _tensors([args[position] for position in read])
            copies = {id(tensor): torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in targets}
            if sources:
                copies.update(zip(map(id, sources), fetch(sources), strict=True))
            work = call(*tree_map_only(torch.Tensor, lambda tensor: copies[id(tensor)], args))
            if not targets:  # Do not wait for a send: the receiver may send first.
                return work
            work.wait()
            put(targets, [copies[id(tensor)] for tensor in targets])
            return done(targets)

        return through_host


def _tensors(args: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]


def runtime_side(host: Any, options: Any) -> Any:
    """Return the runtime's own group for tensors of a device, from torch's ``_DistributedBackendOptions``."""
    from torch_xla.distributed.xla_backend import ProcessGroupXla

    side = ProcessGroupXla(options.store, options.group_rank, options.group_size, options.timeout)
    ranks, size = list(options.global_ranks_in_group), dist.get_world_size() if dist.is_initialized() else 0
    if ranks and len(ranks) < size:  # as in torch_xla's own new_group (2.8)
        side._mesh = [ranks] if len(ranks) > 1 else [[rank] for rank in range(size)]
    of_group = enumerate(ranks or range(options.group_size))  # torch_xla 2.9 asks torch for the ranks of `side`.
    distributed_c10d._world.pg_group_ranks[side] = {rank: number for number, rank in of_group}
    return side


def name_with(host: str, *, through_host: bool) -> str:
    """Register two-sided groups with torch, and return their name: "xla_ccl" or "xla_gloo".

    Args:
        host: the backend for CPU tensors, "ccl" or "gloo".
        through_host: whether device tensors use `host` too; otherwise they use the runtime's own group.
    """

    def create(options: Any, _group_options: Any) -> TwoSidedGroup:
        place = options.group_rank, options.group_size
        side = create_group(options) if host == "ccl" else ProcessGroupGloo(options.store, *place, options.timeout)
        return TwoSidedGroup(side, ThroughHost(side) if through_host else runtime_side(side, options), *place)

    dist.Backend.register_backend(f"xla_{host}", create, extended_api=True, devices=["cpu", "xla"])
    return f"xla_{host}"
