"""What hosts that train apart need of a backend: averages of their parameters, in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Averaging(Protocol):
    """Averages a vector of float32 or more over all ranks, again and again.

    Attributes:
        residual: what the averages have lost, the same on all ranks after `settle`; the next adds it. None: nothing.
    """

    residual: torch.Tensor | None

    def settle(self) -> None:
        """Agree on `residual`; every rank calls it after the same average."""

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin to average a vector in place; return what waits for the result. All ranks call it in the same order."""
