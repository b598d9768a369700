"""The backend that comes with torch: slower than ccl, needs nothing else."""

from __future__ import annotations

import torch.distributed as dist

from cpudist.backends.process_group import ProcessGroupBackend


class GlooBackend(ProcessGroupBackend):
    """`torch.distributed`'s own gloo, over TCP."""

    name = "gloo"

    def unavailable(self) -> str | None:
        if dist.is_available() and dist.is_gloo_available():
            return None
        return "this torch was built without gloo; install torch from PyPI"

    def transport(self) -> str | None:
        return "tcp" if dist.is_initialized() else None
