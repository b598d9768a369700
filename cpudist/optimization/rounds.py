"""When hosts that train apart exchange how far they have moved, and when they make the outer step."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from cpudist.backends import measured
from cpudist.backends.averaging import Averaging
from cpudist.optimization.outer_step import Exchange, OuterStep, flat

_MEASURED = 4  # steps before each of the two exchanges that "auto" measures; the first one opens connections


class Rounds:
    """Counts steps; begins an exchange after every K-th one, and makes its outer step K/2 steps later.

    Every rank calls each method after the same step, so exchanges have the same order on all ranks.

    Attributes:
        every: K; None while "auto" measures.
        done: how many steps this rank has made since the last exchange began.
        apart: whether parameters may differ between hosts.
        outer: the outer step.

    Args:
        every: K, or None to choose it.
        outer: the outer step.
        averaging: averages over all ranks.
        parameters: returns this rank's parameters.
        stepped: is called after each outer step, with the bytes of its average.
        chosen: is called with K, and the seconds of a step and of an exchange, once they are measured.
    """

    def __init__(
        self,
        every: int | None,
        outer: OuterStep,
        averaging: Averaging,
        parameters: Callable[[], list[torch.Tensor]],
        stepped: Callable[[int], None],
        chosen: Callable[[int, float, float], None],
    ) -> None:
        self.every = every
        self.done = 0
        self.apart = False
        self.outer = outer
        self._exchange = Exchange(averaging, outer)
        self._parameters = parameters
        self._stepped, self._chosen = stepped, chosen
        self._measurements = 0
        self._ends: list[float] = []  # when the steps since the last exchange ended, in seconds

    @property
    def delay(self) -> int:
        """The number of steps that hide an exchange."""
        return (self.every or 0) // 2

    def ahead(self) -> int:
        """Return in how many steps this rank completes an exchange that other ranks have not yet begun now."""
        return (self.every or _MEASURED) - self.done + self.delay

    def before_step(self) -> None:
        """Note the parameters, if all ranks have the same."""
        if not self.apart:
            self.outer.parameters = flat(self._parameters())

    def after_step(self) -> None:
        """Count a step; make the outer step if it is due, and begin an exchange after the K-th step."""
        self.done += 1
        self.apart = True
        if self.every is None:
            self._ends.append(time.perf_counter())
            if self.done == _MEASURED:
                self._measure()
            return
        if self.done == self.delay:
            self.finish()
        if self.done == self.every:
            self._begin()
            if self.delay == 0:
                self.finish()

    def synchronize(self) -> None:
        """Give all ranks the same parameters: finish what is under way, then exchange the steps made since it began."""
        self.finish()
        if self.done:
            self._begin()
            self.finish()
        self.apart = False

    def restart(self) -> None:
        """Count from here, where all ranks have the same parameters; wait for what is under way, and drop it."""
        self._exchange.drop()
        self.done, self.apart = 0, False

    def finish(self) -> None:
        """Make the outer step of the exchange under way, if there is one."""
        if self._exchange.under_way:
            self._stepped(self._exchange.apply(self._parameters(), self.done))

    def _begin(self) -> None:
        self._exchange.begin(self._parameters())
        self.done = 0

    def _measure(self) -> None:
        """Make an outer step without a delay; choose K by the second one's time and that of the steps before it.

        The rank that came last has waited least: the others' times are not those of the network.
        """
        began = time.perf_counter()
        self._begin()
        sent = time.perf_counter()
        self._exchange.wait()
        received = time.perf_counter()
        self.finish()
        own = time.perf_counter() - began - (received - sent)
        self._measurements += 1
        if self._measurements == 2:
            step = statistics.median(after - before for before, after in itertools.pairwise(self._ends))
            step, own, network = measured.largest(step, own, sent - received)
            self.every = measured.steps_between(step, -network, own)
            self._chosen(self.every, step, -network)
        self._ends.clear()
