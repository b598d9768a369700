"""Keys and values of the job's store, and the clients that wait for keys."""

import time
from asyncio import AbstractEventLoop, TimerHandle
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Wait:
    """A client that waits for keys."""

    keys: Sequence[bytes]  # the keys to wait for
    enough: Callable[[Iterable[bool]], bool]  # `all` or `any`: whether all keys are needed or one
    done: Callable[[bool], None]  # called once; its argument is whether the keys were set in time
    timer: TimerHandle | None = None


class Values:
    """Keys and values, as bytes; `loop` runs the timers of waits."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._values: dict[bytes, bytes] = {}
        self._since: dict[bytes, float] = {}  # time at which each key was last set
        self._waiting: defaultdict[bytes, set[Wait]] = defaultdict(set)

    def __len__(self) -> int:
        return len(self._values)

    def set(self, key: bytes, value: bytes) -> None:
        """Set a key and complete the waits for it."""
        self._values[key] = value
        self._since[key] = time.monotonic()
        for wait in list(self._waiting.get(key, ())):
            if self._is_there(wait):
                self._end(wait, True)

    def get(self, keys: Sequence[bytes]) -> list[bytes] | None:
        """Return the values of all keys; None if one is missing."""
        return [self._values[key] for key in keys] if self.has_all(keys) else None

    def has_all(self, keys: Sequence[bytes]) -> bool:
        return all(key in self._values for key in keys)

    def add(self, key: bytes, amount: int) -> int:
        """Add to a number, which is 0 at first; `get` returns it as text, as torch's stores do."""
        total = int(self._values.get(key, b"0")) + amount
        self.set(key, str(total).encode())
        return total

    def append(self, key: bytes, value: bytes) -> None:
        self.set(key, self._values.get(key, b"") + value)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Compare and set like `torch.distributed.Store.compare_set`: a missing key is set if `expected` is empty."""
        if self._values.get(key, b"") == expected:
            self.set(key, desired)
        return self._values.get(key, expected)

    def delete(self, key: bytes) -> bool:
        """Delete a key; return whether it was there."""
        self._since.pop(key, None)
        return self._values.pop(key, None) is not None

    def age(self, key: bytes) -> float | None:
        """Return the seconds since a key was last set; None if it is missing."""
        return time.monotonic() - self._since[key] if key in self._values else None

    def wait(self, wait: Wait, seconds: float) -> None:
        """Complete `wait` as soon as its keys are set, or after `seconds`."""
        if self._is_there(wait):
            wait.done(True)
            return
        for key in wait.keys:
            self._waiting[key].add(wait)
        wait.timer = self._loop.call_later(seconds, self._end, wait, False)

    def forget(self, wait: Wait) -> None:
        """Cancel `wait`."""
        if wait.timer is not None:
            wait.timer.cancel()
        for key in wait.keys:
            self._waiting[key].discard(wait)
            if not self._waiting[key]:
                del self._waiting[key]

    def _is_there(self, wait: Wait) -> bool:
        return wait.enough(key in self._values for key in wait.keys)

    def _end(self, wait: Wait, there: bool) -> None:
        self.forget(wait)
        wait.done(there)
