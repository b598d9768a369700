"""One line where PyTorch/XLA leaves the ranks of a launcher alone: it connects no CPU processes, and trains each."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

from cpudist import launchers
from cpudist.console import say
from cpudist.on_import import after_import


def register() -> None:
    """Watch the runtime's process group. torch calls this at the end of its import, without a job of cpudist's, too."""
    if importlib.util.find_spec("torch_xla") is not None:
        after_import("torch_xla.distributed.xla_backend", _watch)


def _watch(xla_backend: ModuleType) -> None:
    """Let `ProcessGroupXla` warn; in a job of cpudist's, the runtime is connected or the group is another one."""
    cls: Any = xla_backend.ProcessGroupXla
    original = cls.__init__

    @functools.wraps(original)
    def init(self: Any, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
        original(self, store, rank, size, *args, **kwargs)
        launcher = launchers.detect()
        if size == 1 and launcher.placement().size > 1 and launcher.is_main_process:
            say(
                f"warning: PyTorch/XLA has not connected the {launcher.placement().size} processes of {launcher.name}, "
                "and each trains alone; start the script by cpudist-train --backend xla (cpudist docs xla)"
            )

    cls.__init__ = init
