"""The devices of PyTorch/XLA, which compute lazily: work is collected, compiled, and started at the end of a step.

The module imports torch in methods only; see `Devices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from cpudist.backends.interface import Devices
from cpudist.backends.xla import pjrt

if TYPE_CHECKING:
    import torch

    from cpudist.backends.xla.program import Program


class XlaDevices(Devices):
    """The devices of PyTorch/XLA's runtime; a process has one runtime."""

    type = "xla"
    companions = ("torch_xla",)

    def __init__(self) -> None:
        self.program: Program | None = None  # the runtime of the running job; None without a job
        self._prepared: WeakSet[torch.nn.Module] = WeakSet()

    def findings(self, environment: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
        # If torch_xla does not fit torch, the check of versions reports it.
        return pjrt.findings(environment) if pjrt.missing() is None else iter(())

    def found(self) -> str | None:
        """Return the devices of this host, GPUs only if PyTorch/XLA could use them."""
        kinds = [kind for kind in pjrt.KINDS if kind != "cuda" or pjrt.lacks(kind) is None]
        counts = {kind.upper(): pjrt.count(kind) for kind in kinds}
        return ", ".join(f"{count} {kind} device{'s' * (count > 1)}" for kind, count in counts.items() if count) or None

    def prepare(self, model: torch.nn.Module) -> None:
        if self.program is not None and model not in self._prepared:  # several Trainers may train one model
            self._prepared.add(model)
            self.program.watch(model)

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of `loader` on the device; they are moved there ahead of use."""
        import torch
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        return MpDeviceLoader(loader, torch.device(self.type))  # type: ignore[no-any-return]

    def end_step(self, *, wait: bool = False) -> None:
        import torch_xla

        torch_xla.sync(wait=wait, reset_scope=False)  # do not close an `xp.StepTrace` of the caller

    def synchronize(self) -> None:
        self.end_step(wait=True)

    def random_state(self) -> int:
        from torch_xla.core import xla_model

        return int(xla_model.get_rng_state())

    def set_random_state(self, state: int) -> None:
        from torch_xla.core import xla_model

        xla_model.set_rng_state(state)
