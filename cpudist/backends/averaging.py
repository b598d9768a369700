"""What hosts that train apart need of a backend: averages of their parameters, in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Averaging(Protocol):
    """Averages a vector over all ranks, again and again.

    Attributes:
        residual: what compression has lost so far, shaped as the vector, which the next average adds: the same on all
            ranks after `settle`; None: nothing.
    """

    residual: torch.Tensor | None

    def settle(self) -> None:
        """Make `residual` the same on all ranks; every rank calls it after the same average."""

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin to average a vector in place; all ranks call it in the same order.

        Args:
            vector: shape (n,), of float32 or float64.

        Returns:
            A function that waits for the result.
        """


class ExactAveraging:
    """Averages vectors as they are; all ranks make this together."""

    residual: Any = property(lambda self: None, lambda self, value: None)  # loses nothing

    def __init__(self) -> None:
        self._group = dist.new_group(group_desc="exchange of hosts")

    def settle(self) -> None:
        """Do nothing."""

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin an average as `Averaging.begin` says."""
        work: Any = dist.all_reduce(vector, group=self._group, async_op=True)
        future = work.get_future()  # so that ccl makes progress by itself, with a timeout

        def wait() -> None:
            future.wait()
            vector.div_(dist.get_world_size())

        return wait
