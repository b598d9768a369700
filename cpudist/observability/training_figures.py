"""Times, losses and speed of one training loop on this rank."""

import time
from collections import deque
from dataclasses import dataclass, field

from cpudist.supervision.step_counter import StepCounter

_STEPS = 10_000  # The times of so many newest steps are kept.


@dataclass
class Training:
    """Measurements of one training loop on this rank.

    Attributes:
        counter: counts the steps of this process.
        first: the number of steps completed before this attempt.
        times: the time of each of the newest steps, with data loading, and its communication wait (None: not measured).
        samples_per_step: samples of all ranks in a step, on average; None: unknown.
        losses: the losses that Trainer or the script has logged.
    """

    counter: StepCounter
    first: int = 0
    times: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=_STEPS))
    samples_per_step: float | None = None
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = self.counter.steps
        self._samples = 0
        self._begin = 0.0, 0.0  # at the begin of this step: the time, and the communication seconds so far

    @property
    def steps(self) -> int:
        """The optimizer steps of this loop so far."""
        return self.counter.steps - self._before

    def add_samples(self, count: int) -> None:
        """Add the samples of all ranks in the steps since the last call."""
        self._samples += count
        self.samples_per_step = self._samples / max(self.steps, 1)

    def begin_step(self, communicated: float | None) -> None:
        """Begin to time a step, given this process's seconds of communication so far."""
        self._begin = time.perf_counter(), communicated or 0.0

    def end_step(self, communicated: float | None) -> None:
        """Note the time of a step, and begin the next one."""
        begin, before = self._begin
        self.times.append((time.perf_counter() - begin, None if communicated is None else communicated - before))
        self.begin_step(communicated)

    def step_seconds(self) -> list[float]:
        """Return the times of the newest steps; any thread may call this."""
        return [seconds for seconds, _ in list(self.times)]

    def samples_per_second(self, steps: int = _STEPS) -> float | None:
        """Return the global samples per second over the last `steps` steps; None if unknown."""
        seconds = self.step_seconds()[-steps:]
        return self.samples_per_step * len(seconds) / sum(seconds) if seconds and self.samples_per_step else None

    def communication_share(self) -> float | None:
        """Return the communication wait as a share of the steps' time; None if unknown."""
        seconds, waited = zip(*self.times, strict=True) if self.times else ((), (None,))
        return None if None in waited else min(sum(waited) / sum(seconds), 1.0)
