"""Call the observers of a job, and define the interface through which they read it.

    job.observers.add(Timeline(job, file, (10, 15)))

The first exception of an observer is reported in one line. It ends that observer on this rank, and nothing else.

The heartbeat's thread calls `beat` and `PaceMeter.read`. They must not need a lock that a thread of the script can
hold (supervision/heartbeat.py).
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from torch.distributed import Store

from cpudist.backends import Backend
from cpudist.balance.agreed import Balance
from cpudist.console import say
from cpudist.store import Connection, StoreLost
from cpudist.supervision.rank_status import RankStatus
from cpudist.supervision.step_counter import StepCounter
from cpudist.world import RankInfo, World


class ObservedJob(Protocol):
    """The part of a job that observers may read; see `Job`. Observers have keys of their own in `store`."""

    world: World
    members: list[RankInfo]
    restarts: int
    backend: Backend
    balance: Balance
    counter: StepCounter
    store: Store

    @property
    def timeout(self) -> float: ...
    def statuses(self) -> dict[int, RankStatus]: ...


class Observer:
    """Base class of observers. Public methods of derived classes never raise; after an exception they do nothing.

    SystemExit and KeyboardInterrupt pass through: signal handlers raise them anywhere, so they are not its errors.
    """

    # Results of methods after an exception, by method name; other methods return None.
    otherwise: ClassVar[Mapping[str, object]] = {}
    _failed = False

    def __init_subclass__(cls) -> None:  # wraps every public method, also those that a library calls
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(cls, name, _harmless(method))

    def step(self, optimizer: Any) -> None:
        """Observe a step of an optimizer."""

    def beat(self, store: Connection) -> None:
        """Observe at each heartbeat, in its thread and with its connection `store`; take no lock of the script."""

    def end(self) -> None:
        """Observe the end of the script on this rank, before the rank waits for the others."""


class Observers:
    """Calls the observers of a job on this rank."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> None:
        self._observers.append(observer)

    def step(self, optimizer: Any) -> None:
        for observer in self._observers:
            observer.step(optimizer)

    def beat(self, store: Connection | None) -> None:
        """Pass a heartbeat to all observers; do nothing if the store is lost."""
        for observer in self._observers if store is not None else ():
            observer.beat(store)  # type: ignore[arg-type]

    def end(self) -> None:
        """Pass the end of the script to all observers, once."""
        observers, self._observers = self._observers, []
        for observer in observers:
            observer.end()


def _harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Observer, *args: Any, **kwargs: Any) -> Any:
        if not self._failed:
            try:
                return method(self, *args, **kwargs)
            except StoreLost:  # the watch reports it
                self._failed = True
            except Exception as error:  # noqa: BLE001 - an observer must not fail the job
                if not self._failed:  # a nested call may have reported an error
                    say(f"warning: {type(self).__name__} has failed and ends; the job goes on: {error!r}")
                self._failed = True
        return self.otherwise.get(method.__name__)

    return call
