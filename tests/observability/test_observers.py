"""Whatever an observer raises is reported once, and costs that observer alone."""

import importlib
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import mpirun, run
from observability.checks.observers_fail import METHODS, ON_RANK_0

from cpudist import observability, training
from cpudist.observability.observers import Observer, Observers
from cpudist.store import StoreLost

CHECK = Path(__file__).parent / "checks" / "observers_fail.py"


def _observers() -> list[type[Observer]]:
    for package in (observability, training):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return [kind for kind in Observer.__subclasses__() if kind.__module__.startswith("cpudist.")]


def _methods(kind: type[Observer]) -> dict[str, Any]:
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in functions if "__" not in name and not name.startswith("_")}  # not mutmut's


@pytest.mark.parametrize("kind", _observers(), ids=lambda kind: kind.__name__)
def test_no_public_method_of_an_observer_raises(kind: type[Observer], capsys: pytest.CaptureFixture[str]) -> None:
    own = {name: method for name, method in _methods(kind).items() if method.__module__.startswith("cpudist.")}
    assert own
    broken: Any = kind.__new__(kind)  # without its attributes
    for name, method in own.items():
        parameters = [one for one in inspect.signature(method).parameters.values() if one.default is one.empty]
        positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        assert getattr(broken, name)(*[None] * (len(positional) - 1)) in (None, kind.otherwise.get(name))
    assert capsys.readouterr().err.count(f"{kind.__name__} has failed") == 1


class Raises(Observer):
    """Raises in each event."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.calls = error, 0

    def step(self, optimizer: Any) -> None:
        self.calls += 1
        raise self.error

    def beat(self, store: object) -> None:
        self.calls += 9

    def end(self) -> None:
        raise self.error


def test_one_that_raises_does_not_disturb_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    first, lost, second = Raises(ValueError("no")), Raises(StoreLost("gone")), Raises(ValueError("no"))
    observers = Observers()
    for one in (first, lost, second):
        observers.add(one)
    for _ in range(3):
        observers.step(None)
    observers.beat(None)  # the store is lost
    observers.end()
    assert [one.calls for one in (first, lost, second)] == [1, 1, 1]
    assert capsys.readouterr().err.count("Raises has failed") == 2, "the watch reports a lost store"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_signal_handlers_raise_passes(error: type[BaseException]) -> None:
    observer = Raises(error())
    for _ in range(2):
        with pytest.raises(error):
            observer.step(None)


@pytest.mark.job
def test_a_job_completes_whichever_observer_raises(tmp_path: Path) -> None:
    result = run(mpirun(2, sys.executable, str(CHECK), str(tmp_path)), timeout=300)
    assert result.returncode == 0, result.output
    assert result.stdout.count("completed\n") == 2
    for kind, methods in METHODS.items():
        for name in methods:
            called = f"{kind.__name__}.{name}"
            assert result.stderr.count(f"{called} was made to fail") == (1 if called in ON_RANK_0 else 2), called
