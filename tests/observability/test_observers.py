"""An observer that raises costs the job nothing; ranks that never communicate; when gradients are complete."""

import functools
import inspect
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from observed import ALONE, Observed
from ranks import begin, fork_ranks

import cpudist
from cpudist.observability.gradient_times import GradientTimes
from cpudist.observability.likely_mistakes import ComputingChildren, UnsynchronizedRanks
from cpudist.observability.observers import Observer, Observers
from cpudist.observability.pace import PaceMeter
from cpudist.observability.record import RunRecord
from cpudist.observability.stragglers import Stragglers
from cpudist.observability.timeline import Timeline
from cpudist.store import StoreLost
from cpudist.supervision.interruption import Interruption

SAID = "cpudist: warning: 2 ranks trained without gradient synchronisation (cpudist docs own-script)\n"
LAYER_BYTES = 4 * 1536 * 1024


class Raises(Observer):
    otherwise: ClassVar[dict[str, object]] = {"end": "nothing"}

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
    assert first.end() == "nothing"
    assert capsys.readouterr().err.count("Raises has failed") == 2, "the watch reports a lost store"


@pytest.mark.job
def test_children_that_compute_on_too_few_cpus_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    """They inherit the rank's mask, as a simulation's processes or data workers do."""
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    sleeps = subprocess.Popen(["sleep", "60"])
    try:
        observer = ComputingChildren(seconds=0.3)
        for _ in range(5):
            time.sleep(0.5)
            observer.beat(None)
    finally:
        os.sched_setaffinity(0, cpus)
        for child in (*loops, sleeps):
            child.kill()
            child.wait()
    assert capsys.readouterr().err.count("warning: 2 children of rank 0 compute on its 1 CPU; ") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_signal_handlers_raise_passes(error: type[BaseException]) -> None:
    observer = Raises(error())
    for _ in range(2):
        with pytest.raises(error):
            observer.step(None)


def _fail(kind: type[Observer]) -> None:
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):

            @functools.wraps(method)
            def fails(*_: Any, **__: Any) -> None:
                raise RuntimeError("made to fail")

            setattr(kind, name, fails)
    kind.__init_subclass__()  # as where the class is defined


@pytest.mark.job
@pytest.mark.parametrize("kind", [RunRecord, PaceMeter, Stragglers, GradientTimes, Timeline, UnsynchronizedRanks])
def test_a_job_completes_whichever_observer_raises(kind: type[Observer], tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def script() -> None:
        _fail(kind)
        job = begin(stall=60, record=tmp_path / "record.json")
        job.observers.add(GradientTimes(job, job.record))
        job.observers.add(Timeline(job, tmp_path / "timeline.json", (2, 4)))
        job._context.stacks.figures()  # as `cpudist top` has it
        interruption, beats = Interruption(job.world.rank, 2, job.store, job.heartbeat), list[object]()
        interruption.begin()
        job.heartbeat.add(beats.append)
        trained = cpudist.wrap(model)
        while not interruption.is_last():
            trained(torch.ones(4, 8)).sum().backward()
            cpudist.step(optimizer)
            enough = torch.tensor(float(len(beats) > 1))
            dist.all_reduce(enough, dist.ReduceOp.MIN)
            if enough and job.world.rank == 1 and interruption._received is None:
                os.kill(os.getpid(), signal.SIGUSR1)
        interruption.end()
        assert int(job.store.add("stall/signs", 0)) > 1, "--stall counts"
        assert job.statuses().keys() == {0, 1}, "the watch publishes"
        job.shutdown()

    ranks = fork_ranks(script)
    reported = [(status, output.count(f"{kind.__name__} has failed")) for status, output in ranks]
    assert reported == [(0, 1), (0, int(kind is not Stragglers))], ranks


@pytest.mark.parametrize(
    ("fields", "steps", "before", "after", "warns"),
    [
        ({}, 1, ([], 0.0), ([], 0.0), True),
        ({}, 1, ([], None), ([], None), True),
        ({}, 0, ([], 0.0), ([], 0.0), False),
        ({}, 1, ([], 0.0), ([("", 1)], 0.0), False),
        ({}, 1, ([], 0.0), ([], 0.5), False),  # the script has destroyed its groups
        ({}, 1, (None, 0.0), (None, 0.0), False),  # the backend does not know
        ({"rank": 1}, 1, ([], 0.0), ([], 0.0), False),
        ({"size": 1}, 1, ([], 0.0), ([], 0.0), False),
        ({"device_type": "xla"}, 1, ([], 0.0), ([], 0.0), False),
    ],
)
def test_rank_0_of_several_on_cpus_warns(
    fields: dict[str, object], steps: int, before: tuple[object, float | None], after: tuple[object, float | None],
    warns: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    job = Observed(replace(ALONE, **{"size": 2, **fields}))
    job.backend.collectives, job.backend.seconds = before
    observer = UnsynchronizedRanks(job)
    job.counter.steps = steps
    job.backend.collectives, job.backend.seconds = after
    observer.end()
    assert capsys.readouterr().err == (SAID if warns else "")
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    observer.end()
    assert ("give Lightning devices=" in capsys.readouterr().err) == warns
    job.changes.undo()


@pytest.mark.job
@pytest.mark.parametrize("synchronized", [False, True])
def test_a_job_of_two_ranks(synchronized: bool) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])

    def script() -> None:
        job = begin()
        if synchronized:
            dist.all_reduce(torch.ones(1))
        optimizer.step()
        job.shutdown()

    assert fork_ranks(script) == [(0, "" if synchronized else SAID), (0, "")]


def _train(layers: list[torch.nn.Module], steps: int, batches: int = 1, waited: float | None = None) -> Any:
    """Train with an optimizer for the first layer, and one for the others; return what the record says of gradients."""
    model = torch.nn.Sequential(*layers)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (model[:1], model[1:])]
    job = Observed()
    record = RunRecord(job)
    times = GradientTimes(job, record)
    job.counter.after_step.append(times.step)
    job.backend.seconds = waited
    for _ in range(steps):
        for _ in range(batches):
            model(torch.ones(2, 1536)).sum().backward()
        for optimizer in optimizers:
            job.backend.seconds = None if waited is None else job.backend.seconds + waited
            optimizer.step()
    times.end()
    job.changes.undo()
    return record.gradient_times


def _layers() -> list[torch.nn.Module]:
    wide, narrow = torch.nn.Linear(1536, 1024, bias=False), torch.nn.Linear(1024, 1536, bias=False)
    narrow.register_full_backward_hook(lambda *_: time.sleep(0.05))
    return [wide, narrow]


@pytest.mark.parametrize("waited", [None, 0.25])
def test_groups_of_gradients_in_order_and_the_communication_wait(waited: float | None) -> None:
    layers = _layers()
    found = _train(layers, steps=12, batches=2, waited=waited)
    assert found["values"] == 2 * 1536 * 1024
    (first, first_bytes), (last, last_bytes) = found["groups"]
    assert (first_bytes, last_bytes, last) == (LAYER_BYTES, LAYER_BYTES, 0.0)
    assert 0.05 <= first < 0.5
    assert found["waiting"] == waited
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)


def test_a_short_job_leaves_nothing_behind() -> None:
    layers = _layers()
    assert _train(layers, steps=4) is None
    assert not any(layer.weight._post_accumulate_grad_hooks for layer in layers)
