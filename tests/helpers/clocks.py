"""A clock that tests set."""

from types import ModuleType

import pytest


class Clock:
    """Stands in for the module `time`: `now` passes while a module sleeps, or when a test changes it.

    Attributes:
        slept: how long each sleep was.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 1000.0, list[float]()
        self._monkeypatch = monkeypatch

    def drives(self, *modules: ModuleType) -> None:
        """Give this clock to `modules`, each of which imports `time`, until the test has ended."""
        for module in modules:
            self._monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
