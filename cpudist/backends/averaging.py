"""What hosts that train apart need of a backend: averages of their parameters, in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


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
