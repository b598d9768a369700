"""Times, losses and speed of one training loop on this rank."""

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from cpudist.errors import UserError
from cpudist.supervision.step_counter import StepCounter

T = TypeVar("T", int, float)

NEWEST = 10_000  # The times of so many newest steps are kept.


@dataclass
class Training:
    """Measurements of one training loop on this rank."""

    counter: StepCounter  # counts the steps of this process
    first: int = 0  # the number of steps completed before this attempt
    # The time of each of the newest steps, with data loading, and its communication wait (None: not measured).
    times: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=NEWEST))
    # The samples and tokens of a step, summed over ranks, as a mean over steps; only those that are known.
    per_step: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)  # the losses that Trainer or the script has logged
    # The share of the measured speed of matrix products that one token per second takes; None: unknown.
    product_share: float | None = None

    def __post_init__(self) -> None:
        self._before = self.counter.steps
        self._counts = Counter[str]()
        self._begin = 0.0, 0.0  # the time at the beginning of this step, and the communication seconds until then

    @property
    def steps(self) -> int:
        """The optimizer steps of this loop so far."""
        return self.counter.steps - self._before

    def add(self, name: str, count: int) -> None:
        """Add the "samples" or "tokens" of all ranks in the steps since the last call."""
        self._counts[name] += count
        self.per_step[name] = self._counts[name] / max(self.steps, 1)

    def add_batch(self, rows: int, tokens: int) -> None:
        """Add a batch of this rank. A step's tokens are estimated from its samples, by the tokens in a row so far."""
        self._counts.update(rows=rows, tokens=tokens)
        self.per_step["tokens"] = self.per_step.get("samples", 0) * self._counts["tokens"] / self._counts["rows"]

    def begin_step(self, communicated: float | None) -> None:
        """Begin to time a step, given this process's seconds of communication so far."""
        self._begin = time.perf_counter(), communicated or 0.0

    def end_step(self, communicated: float | None) -> None:
        begin, before = self._begin
        self.times.append((time.perf_counter() - begin, None if communicated is None else communicated - before))
        self.begin_step(communicated)

    def step_seconds(self) -> list[float]:
        """Return the times of the newest steps; any thread may call this."""
        return [seconds for seconds, _ in list(self.times)]

    def per_second(self, name: str, steps: int = NEWEST) -> float | None:
        """Return the global "samples" or "tokens" per second over the last `steps` steps; None if unknown."""
        seconds, each = self.step_seconds()[-steps:], self.per_step.get(name)
        return each * len(seconds) / sum(seconds) if seconds and each else None

    def communication_share(self) -> float | None:
        """Return the communication wait as a share of the steps' time; None if unknown."""
        seconds, waited = zip(*self.times, strict=True) if self.times else ((), (None,))
        return None if None in waited else min(sum(waited) / sum(seconds), 1.0)


def checked(name: str, value: Any, read: Callable[[Any], T]) -> T:
    """Convert a script's figure by `read`, `float` or `operator.index`; UserError if it fails or a count is below 0."""
    with suppress(TypeError, ValueError, RuntimeError):
        number = read(value.detach() if isinstance(value, torch.Tensor) else value)
        if read is float or number >= 0:
            return number
    kind = "a number, or a tensor of one element" if read is float else "a whole number from 0 on, counted on this rank"
    raise UserError(f"{name} must be {kind}, not {value!r:.50}")
