"""A c10d process group for tensors of XLA devices and of the CPU, whose messages go through the host.

With it, `torch.distributed`, DDP and what builds on them take tensors of a device as they are; see transfers.py.
"""

# torch's stubs have overloads besides, which c10d and DDP do not call.
# mypy: disable-error-code="override"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from cpudist.backends.ccl.backend import CclBackend
from cpudist.backends.ccl.group import create_group
from cpudist.backends.gloo import GlooBackend
from cpudist.backends.xla.transfers import done, fetch, put

Tensors: TypeAlias = list[torch.Tensor]


class HostCcl(CclBackend):
    """ccl between the hosts of XLA devices."""

    def make(self, options: Any) -> Any:
        """Return a c10d backend for CPU tensors, from torch's ``_DistributedBackendOptions``."""
        return create_group(options)


class HostGloo(GlooBackend):
    """gloo between the hosts of XLA devices."""

    def make(self, options: Any) -> Any:
        """Return a c10d backend for CPU tensors, from torch's ``_DistributedBackendOptions``."""
        return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)


class HostGroup(dist.ProcessGroup):
    """Process group that extends `inner`, a c10d backend for CPU tensors, to tensors of XLA devices.

    Tensors of a device are fetched, given to `inner`, awaited and put back: c10d's futures cannot wait for a device
    that computes lazily.
    """

    def __init__(self, inner: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.inner = inner

    def getBackendName(self) -> str:  # noqa: N802 - c10d's name
        return "xla"

    def allreduce(self, tensors: Tensors, options: Any = None) -> Any:
        return self._in_place(self.inner.allreduce, tensors, options)

    def allreduce_coalesced(self, tensors: Tensors, options: Any = None) -> Any:
        return self._in_place(self.inner.allreduce_coalesced, tensors, options)

    def broadcast(self, tensors: Tensors, options: Any = None) -> Any:
        return self._in_place(self.inner.broadcast, tensors, options)

    def reduce(self, tensors: Tensors, options: Any = None) -> Any:
        return self._in_place(self.inner.reduce, tensors, options)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> Any:
        return self._lists(self.inner.allgather, outputs, inputs, options)

    def gather(self, outputs: list[Tensors], inputs: Tensors, options: Any = None) -> Any:
        return self._lists(self.inner.gather, outputs, inputs, options)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any = None) -> Any:
        if _on_cpu(outputs):
            return self.inner.scatter(outputs, inputs, options)
        return self._fill(outputs, lambda host: self.inner.scatter(host, [fetch(row) for row in inputs], options))

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], options: Any = None) -> Any:
        if _on_cpu(outputs):
            return self.inner.reduce_scatter(outputs, inputs, options)
        return self._fill(
            outputs, lambda host: self.inner.reduce_scatter(host, [fetch(row) for row in inputs], options)
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, options: Any = None) -> Any:
        if _on_cpu(outputs):
            return self.inner.alltoall(outputs, inputs, options)
        return self._fill(outputs, lambda host: self.inner.alltoall(host, fetch(inputs), options))

    def _allgather_base(self, output: torch.Tensor, value: torch.Tensor, options: Any = None) -> Any:
        return self._flat(self.inner._allgather_base, output, value, options)

    def _reduce_scatter_base(self, output: torch.Tensor, value: torch.Tensor, options: Any = None) -> Any:
        return self._flat(self.inner._reduce_scatter_base, output, value, options)

    def alltoall_base(
        self, output: torch.Tensor, value: torch.Tensor, output_sizes: Any, input_sizes: Any, options: Any = None
    ) -> Any:
        def call(host: torch.Tensor, given: torch.Tensor, options: Any) -> Any:
            return self.inner.alltoall_base(host, given, output_sizes, input_sizes, options)

        return self._flat(call, output, value, options)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self.inner.send(tensors if _on_cpu(tensors) else fetch(tensors), peer, tag)

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Any:
        return self._in_place(lambda host, _: self.inner.recv(host, peer, tag), tensors, None)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return self._in_place(lambda host, _: self.inner.recv_anysource(host, tag), tensors, None)

    def barrier(self, opts: Any = None) -> Any:  # torch passes it by this name
        return self.inner.barrier(dist.BarrierOptions() if opts is None else opts)

    def _in_place(self, call: Callable[[Tensors, Any], Any], tensors: Tensors, options: Any) -> Any:
        if _on_cpu(tensors):
            return call(tensors, options)
        if self.size() == 1:  # nothing changes, so the device need not compute them yet
            return done(tensors)
        return self._fill(tensors, lambda host: call(host, options))

    def _lists(
        self, call: Callable[[list[Tensors], Tensors, Any], Any], outputs: list[Tensors], inputs: Tensors, options: Any
    ) -> Any:
        if _on_cpu(inputs):
            return call(outputs, inputs, options)
        host = [[torch.empty(one.shape, dtype=one.dtype) for one in row] for row in outputs]
        call(host, fetch(inputs), options).wait()
        for row, values in zip(outputs, host, strict=True):
            put(row, values)
        return done(outputs)

    def _flat(
        self,
        call: Callable[[torch.Tensor, torch.Tensor, Any], Any],
        output: torch.Tensor,
        value: torch.Tensor,
        options: Any,
    ) -> Any:
        if _on_cpu([value]):
            return call(output, value, options)
        host = torch.empty(output.shape, dtype=output.dtype)
        call(host, fetch([value])[0], options).wait()
        put([output], [host])
        return done([output])

    def _fill(self, tensors: Tensors, call: Callable[[Tensors], Any]) -> Any:
        host = fetch(tensors)
        call(host).wait()
        put(tensors, host)
        return done(tensors)


def name_with(host: HostCcl | HostGloo) -> str:
    """Register process groups that go through `host` with torch, and return their name: "xla_ccl" or "xla_gloo"."""
    name = f"xla_{host.name}"

    def create(options: Any, _group_options: Any) -> HostGroup:
        return HostGroup(host.make(options), options.group_rank, options.group_size)

    if name.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "xla"])
    return name


def _on_cpu(tensors: Sequence[torch.Tensor]) -> bool:
    return tensors[0].device.type == "cpu"
