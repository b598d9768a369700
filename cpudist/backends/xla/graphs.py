"""The graphs that the runtime compiles: their number for the run record, and what replaces `torch_xla.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch_xla.debug import metrics

from cpudist.console import say


def compiled() -> tuple[int, float]:
    """Return how many graphs this process has compiled so far, and in how many seconds."""
    data = metrics.metric_data("CompileTime")
    return (int(data[0]), float(data[1]) / 1e9) if data else (0, 0.0)


def compile_in_parts(original: Callable[..., Any], is_main_process: bool) -> Callable[..., Any]:
    """Replace `torch_xla.compile`: ``full_graph=True`` has no effect where gradients leave the device within a step."""

    def compile(f: Any = None, full_graph: bool = False, *args: Any, **kwargs: Any) -> Any:
        if full_graph and is_main_process and dist.get_world_size() > 1:
            say("xla: full_graph=True is left out: gradients go through the host, so a step is two graphs")
        return original(f, full_graph and dist.get_world_size() == 1, *args, **kwargs)

    return compile
