"""What hosts that train apart need of a backend: averages of their parameters, in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Averaging(Protocol):
    """Averages a vector of float32 or more over all ranks, again and again.

    Attributes:
        residual: what the averages so far have lost on this rank, which the next one adds; None: nothing. The sum over
            all ranks is what counts, so all of them may go on with their mean.
    """

    residual: torch.Tensor | None

    def begin(self, vector: torch.Tensor) -> Callable[[], object]:
        """Begin to average a vector in place; return what waits for the result. All ranks call it in the same order."""
