"""accelerate's loader for XLA devices: on several ranks it must say which batch is the last.

accelerate reads that batch ahead, in a thread, and by the time that it is evaluated has forgotten that it was the last
one: `gather_for_metrics` then keeps the samples that were repeated to give every rank as many.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cpudist.huggingface.versions import ACCELERATE, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

_INIT = ["self", "dataloader", "device"]


def patch(data_loader: ModuleType, job: Job) -> None:
    """Change `accelerate.data_loader`: on several ranks of XLA devices, batches are moved when they are asked for."""
    if job.world.device_type != "xla" or job.world.size == 1:
        return
    cls = getattr(data_loader, "MpDeviceLoaderWrapper", None)
    known = cls is not None and list(inspect.signature(cls.__init__).parameters) == _INIT
    check_known(data_loader, known, ACCELERATE)

    def iterate(self: Any) -> Iterator[Any]:
        if self._rng_types is not None:
            data_loader.synchronize_rng_states(self._rng_types, self._loader.synchronized_generator)
        for batch in self._loader:
            yield data_loader.send_to_device(batch, self.device)

    job.changes.attribute(cls, "__iter__", iterate)
