"""The step that all hosts make together: DiLoCo's, or plain averaging (docs/slow-networks.md).

torch's `model_averaging` averages parameters too, but has no outer step, no delay, and no state for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from cpudist.backends.averaging import Averaging
from cpudist.backends.compression import NONE

RATE, MOMENTUM = 0.7, 0.9


class OuterStep:
    """The parameters that all ranks share, and the step by which they move.

    How far hosts have moved is taken for a gradient, by DiLoCo (Douillard et al., 2023, arXiv 2311.08105), with
    learning rate 0.7 and Nesterov momentum 0.9; or their parameters are averaged as they are.

    Attributes:
        parameters: shape (n,), the same bits on all ranks.
        momentum: of the same shape; None: none yet.
        plain: whether this is plain averaging, which has no momentum.

    Args:
        name: "nesterov" or "none".
    """

    def __init__(self, name: str) -> None:
        self.plain = name == NONE
        self.parameters = torch.empty(0)
        self.momentum: torch.Tensor | None = None

    def step(self, moved: torch.Tensor) -> None:
        """Make the step.

        Args:
            moved: how far the ranks' parameters have moved, the mean over all ranks, shape (n,); it is overwritten.
        """
        if self.plain:
            self.parameters -= moved
            return
        if self.momentum is None or self.momentum.shape != moved.shape:
            self.momentum = torch.zeros_like(moved)
        self.momentum.mul_(MOMENTUM).add_(moved)  # as torch.optim.SGD(nesterov=True)
        self.parameters.sub_(moved.add_(self.momentum, alpha=MOMENTUM), alpha=RATE)


class Exchange:
    """The average under way of how far each rank's parameters have moved since the last outer step.

    Args:
        averaging: averages over all ranks, which make their exchanges in the same order.
        outer: the shared parameters.
        tensors: this rank's parameters, of any shapes, n elements in all.
    """

    def __init__(self, averaging: Averaging, outer: OuterStep, tensors: list[torch.Tensor]) -> None:
        self._sent = flat(tensors)
        self._moved = outer.parameters - self._sent
        self._wait: Callable[[], object] | None = averaging.begin(self._moved)

    def wait(self) -> None:
        """Wait for the average."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def apply(self, outer: OuterStep, tensors: list[torch.Tensor]) -> int:
        """Wait for the average, make the outer step, and add to its result how far this rank has moved meanwhile.

        Args:
            outer: the shared parameters.
            tensors: this rank's parameters, which are overwritten.

        Returns:
            The bytes of the average.
        """
        self.wait()
        outer.step(self._moved)
        # Without a step in between the difference is 0, and all ranks have the same bits.
        write(flat(tensors).sub_(self._sent).add_(outer.parameters), tensors)
        return self._moved.numel() * self._moved.element_size()


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the values of tensors of any shapes, n elements in all, as one tensor of shape (n,), at least float32."""
    return torch.cat([t.detach().reshape(-1).to(torch.promote_types(t.dtype, torch.float32)) for t in tensors])


def write(vector: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy the values of `vector`, shape (n,), into tensors of any shapes, n elements in all; undoes `flat`."""
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, values in zip(tensors, torch.split(vector, sizes), strict=True):
        tensor.copy_(values.view(tensor.shape))
