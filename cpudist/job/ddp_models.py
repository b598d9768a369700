"""Adjust the models that DDP wraps: compression of gradients, bucket size, `device_ids`."""

from collections.abc import Callable
from typing import Any

import torch

from cpudist.backends import Backend
from cpudist.backends.auto_compression import choose_later
from cpudist.backends.compression import AUTO, NONE, check_scheme, check_supported, has
from cpudist.console import say
from cpudist.observability.record import RunRecord
from cpudist.patching.patch import Patch, adjusted
from cpudist.world import World


class DdpModels:
    """The models of one job that DDP wraps; `wrapped` is called with each of them.

    Their gradients are compressed between hosts by the scheme that the user has chosen for the job or the model.
    """

    def __init__(
        self, backend: Backend, world: World, record: RunRecord, wrapped: Callable[[torch.nn.Module], None]
    ) -> None:
        self._backend, self._record, self._wrapped = backend, record, wrapped
        self.world = world
        # The default scheme of the job's models (`--compress`); None if the user has set none.
        self.compression: str | None = None
        self._wraps = False  # `wrap` is under way
        self._dropped = False  # whether `device_ids` have been dropped

    def set_compression(self, scheme: str, asked: str) -> None:
        """Set the models' default scheme, or raise UserError; `asked` is the option as the user wrote it."""
        check_supported(self._backend, scheme, asked)
        self.compression = scheme

    def applicable(self, scheme: str | None) -> str | None:
        """Return `scheme`, a model's own, or "none" if only other backends have it; rank 0 then prints one line."""
        if scheme is None or has(self._backend, check_scheme(scheme, f"compress={scheme!r}")):
            return scheme
        if self.world.rank == 0:
            say(f"{self._backend.name} does not have compress={scheme}, which therefore has no effect here")
        return NONE

    def wrap(self, wrap: Callable[[], torch.nn.Module], scheme: str | None = None) -> torch.nn.Module:
        """Call `wrap`, set the compression of the model's gradients, and return the model. All ranks call this.

        `scheme` is a result of `applicable`; None: the job's default. Raises the errors of `Backend.compress`.
        """
        self._wraps, before = True, self._wraps
        try:
            model = wrap()
        finally:
            self._wraps = before
        self._compress(model, scheme)
        return model

    def _follow_ddp(self, constructor: Any) -> Any:
        """Return DDP's constructor with this job's adjustments; a script's own models are compressed, too."""

        def before(given: dict[str, Any]) -> None:
            self._drop_device_ids(given)
            if "bucket_cap_mb_list" not in given:
                given.setdefault("bucket_cap_mb", self._backend.ddp_options().get("bucket_cap_mb"))

        def after(model: torch.nn.Module) -> None:
            self._wrapped(model)
            if not self._wraps:
                self._compress(model, None)

        return adjusted(constructor, before, after)

    def _drop_device_ids(self, arguments: dict[str, Any]) -> None:
        if torch.cuda.is_available() or any(value.device.type != "cpu" for value in arguments["module"].parameters()):
            return
        dropped = [name for name in ("device_ids", "output_device") if arguments.pop(name, None) is not None]
        if dropped and self.world.rank == 0 and not self._dropped:
            self._dropped = True
            say(f"{' and '.join(dropped)} of DistributedDataParallel left out: the model is on CPUs")

    def _compress(self, model: torch.nn.Module, scheme: str | None) -> None:
        scheme = scheme or self.compression or NONE
        self._record.compression = scheme
        if self.world.node_count > 1:
            self._backend.compress(model, scheme)
            if scheme == AUTO:
                self._choose_compression(model)
        elif scheme != NONE:
            self._record.compression = f"{NONE}: all ranks are on one host"
            if self.world.rank == 0 and scheme != AUTO:
                say(f"compression by {scheme} changes nothing here: all ranks are on one host")

    def _choose_compression(self, model: torch.nn.Module) -> None:
        """Choose "none" or "bf16" after the first steps of a model; "none" at once if the backend has no bf16."""

        def chosen(scheme: str, why: str) -> None:
            self._backend.compress(model, scheme)
            self._record.compression = scheme
            if why and self.world.rank == 0:
                say(f"compression auto chooses {scheme}: {why}")

        if "bf16" in self._backend.compressions:
            choose_later(model, chosen)
        else:
            chosen(NONE, "")


PATCHES = (
    Patch(
        "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
        "a script's own DDP gets the job's compression and bucket size; device_ids, refused on CPUs, are dropped",
        lambda constructor, models: models._follow_ddp(constructor),
        "self, module, device_ids, output_device, ...",
    ),
)
