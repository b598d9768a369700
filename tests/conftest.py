"""Options, marks and settings of the whole suite."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from clocks import Clock
from control_group import ControlGroup, control_group

# An example may take long on a busy machine.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")

# Some tests use Trainer in this process, outside a job. There accelerate would choose torch_xla where it is
# installed; it reads this variable when it is imported. Jobs do not inherit it: see jobs.py.
os.environ["USE_TORCH_XLA"] = "0"

# Tests and jobs run side by side. By default OpenMP's threads spin while they wait for one that another process has
# displaced: on two busy cores a step of training took four times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Importing torch 2.8's compiler, as torch_xla and Intel's extension do, starts a process that imports torch, too. It
# took a quarter of the CPU time in which their ranks start.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# As users run it: what ranks print is shown at once without it, too.
os.environ.pop("PYTHONUNBUFFERED", None)

_STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_unmarked: list[str] = []  # the test that runs, if it is not marked `job`


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`, which take minutes each")


def pytest_configure() -> None:
    """Refuse processes in tests that are not marked `job`, and end by SIGTERM as by Ctrl-C."""
    sys.addaudithook(_refuse_processes)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # of `timeout`: jobs are then killed, not left running


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests marked `long` without --long."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: scripts/test.sh --long runs it"))


def pytest_sessionfinish() -> None:
    """Kill processes that tests have forked and left behind, for which the interpreter would wait at its exit."""
    for child in multiprocessing.active_children():
        child.kill()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Guard a test that is not marked `job`, and the fixtures that it sets up."""
    if not item.get_closest_marker("job"):
        _unmarked.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unmarked.clear()


def _refuse_processes(event: str, args: tuple[object, ...]) -> None:
    """Fail a test that starts a process and is not marked `job`. The interpreter calls this for every audit event."""
    if _unmarked and event in _STARTS_A_PROCESS:
        # Not an Exception, so code under test that catches those does not hide it.
        pytest.fail(f"{_unmarked[0]} starts a process; mark it with pytest.mark.job: {event} {args[:2]}", pytrace=False)


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of this process alone, on gloo."""
    import cpudist

    cpudist.init("gloo")
    yield
    cpudist.shutdown()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables with which srun finds a Slurm cluster of this machine."""
    from jobs import BIN
    from slurm_node import slurm_node

    with slurm_node(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**variables, "PATH": f"{BIN}:{variables['PATH']}"}


@pytest.fixture
def cgroup() -> Iterator[ControlGroup]:
    """A control group of this test, without limits."""
    with control_group() as made:
        yield made


@pytest.fixture
def server() -> Iterator[Any]:
    """A server of a job's store, in a thread."""
    from serving import Serving

    serving = Serving()
    yield serving
    serving.lose_owner()
    assert serving.ended(), "it waits a few seconds for clients that stay"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only sleeping advances, for the modules that wait for other processes."""
    from cpudist import waiting
    from cpudist.notebook import nodes
    from cpudist.rendezvous import connecting

    clock = Clock(monkeypatch)
    clock.drives(waiting, connecting, nodes)
    return clock
