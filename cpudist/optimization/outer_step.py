"""The step that all hosts make together: DiLoCo's, or plain averaging (docs/slow-networks.md).

torch's `model_averaging` averages parameters too, but has no outer step, no delay, and no state for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.sgd import sgd

from cpudist.backends.averaging import Averaging
from cpudist.backends.compression import NONE
from cpudist.errors import UserError

RATE, MOMENTUM = 0.7, 0.9
SHORT = (1 - MOMENTUM) / RATE  # the factor for the learning rate of local steps


class OuterStep:
    """The parameters that all ranks share, and the step by which they move.

    How far hosts have moved is taken for a gradient, by DiLoCo (Douillard et al., 2023, arXiv 2311.08105), with
    learning rate 0.7 and Nesterov momentum 0.9; or their parameters are averaged as they are.

    With momentum, outer steps go 0.7 / (1 - 0.9) = 7 times as far as hosts have moved. So hosts take a seventh of the
    learning rate: parameters then go as far as they would without outer steps.

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

    def shorten(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        """Shorten a local step: lower the learning rate of its optimizer; return what restores it.

        Raises:
            UserError: the optimizer has no learning rate.
        """
        if self.plain:
            return lambda: None
        groups = optimizer.param_groups
        rates: list[Any] = [group.get("lr") for group in groups]
        if None in rates:
            raise UserError("--outer nesterov lowers the optimizer's lr, and here is none; take --outer none")

        def set_to(rates: list[Any]) -> None:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

        set_to([rate * SHORT for rate in rates])
        return lambda: set_to(rates)

    def step(self, moved: torch.Tensor) -> None:
        """Make the step.

        Args:
            moved: how far the ranks' parameters have moved, the mean over all ranks, shape (n,).
        """
        if self.plain:
            self.parameters -= moved
            return
        fits = self.momentum is not None and self.momentum.shape == moved.shape
        momenta = [self.momentum if fits else None]
        sgd(
            [self.parameters],
            [moved],
            momenta,
            fused=True,  # reads and writes each value once
            lr=RATE,
            momentum=MOMENTUM,
            nesterov=True,
            dampening=0.0,
            weight_decay=0.0,
            maximize=False,
        )
        self.momentum = momenta[0]


class Exchange:
    """Averages how far each rank's parameters have moved since the last outer step, one average at a time.

    All of them use the same buffers: the page faults of new memory take longer than the arithmetic.

    Attributes:
        under_way: whether an average has begun and its outer step is still to be made.

    Args:
        averaging: averages over all ranks, which make their exchanges in the same order.
        outer: the shared parameters.
    """

    def __init__(self, averaging: Averaging, outer: OuterStep) -> None:
        self.under_way = False
        self._averaging, self._outer = averaging, outer
        self._sent = self._moved = torch.empty(0)
        self._wait: Callable[[], object] = lambda: None

    def begin(self, tensors: list[torch.Tensor]) -> None:
        """Begin an average; none is under way.

        Args:
            tensors: this rank's parameters, of any shapes, n elements in all.
        """
        sent = flat(tensors, self._sent)
        if sent is not self._sent:
            self._sent, self._moved = sent, torch.empty_like(sent)
        torch.sub(self._outer.parameters, sent, out=self._moved)
        self._wait = self._averaging.begin(self._moved)
        self.under_way = True

    def wait(self) -> None:
        """Wait for the average."""
        wait, self._wait = self._wait, lambda: None
        wait()

    def drop(self) -> None:
        """Wait for what is under way, and make no outer step."""
        self.under_way = False
        self.wait()

    def apply(self, tensors: list[torch.Tensor], steps: int) -> int:
        """Wait for the average, make the outer step, and add to its result how far this rank has moved meanwhile.

        Args:
            tensors: this rank's parameters, which are overwritten.
            steps: how many steps this rank has made since the exchange began. With 0, all ranks get the same bits.

        Returns:
            The bytes of the average.
        """
        self.under_way = False
        self.wait()
        self._outer.step(self._moved)
        if steps == 0:
            write(self._outer.parameters, tensors)
        else:
            shift = torch.sub(self._outer.parameters, self._sent, out=self._sent)
            for tensor, values in _pairs(tensors, shift):
                tensor.add_(values)
        return self._moved.numel() * self._moved.element_size()


def flat(tensors: Iterable[torch.Tensor], into: torch.Tensor | None = None) -> torch.Tensor:
    """Return the values of tensors of any shapes, n elements in all, as one tensor of shape (n,), at least float32.

    Args:
        tensors: the tensors.
        into: the tensor to write and return, if it has this shape and type.
    """
    parts = [t.detach().reshape(-1).to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]
    fits = into is not None and len(into) == sum(map(len, parts)) and {part.dtype for part in parts} == {into.dtype}
    return torch.cat(parts, out=into if fits else None)


def write(vector: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Copy the values of `vector`, shape (n,), into tensors of any shapes, n elements in all; undoes `flat`."""
    for tensor, values in _pairs(tensors, vector):
        tensor.copy_(values)


def _pairs(tensors: list[torch.Tensor], vector: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with its values in `vector`, in the same shape."""
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, values in zip(tensors, torch.split(vector, sizes), strict=True):
        yield tensor, values.view(tensor.shape)
