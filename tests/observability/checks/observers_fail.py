"""Jobs one after the other on two ranks; in each, one method of an observer raises, and nothing else may suffer."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import cpudist
from cpudist import job
from cpudist.observability.gradient_times import GradientTimes
from cpudist.observability.observers import Observer
from cpudist.observability.pace import PaceMeter
from cpudist.observability.record import RunRecord
from cpudist.observability.stragglers import Stragglers
from cpudist.observability.timeline import Timeline
from cpudist.observability.unsynchronized import UnsynchronizedRanks
from cpudist.training.interruption import Interruption

METHODS: dict[type[Observer], tuple[str, ...]] = {
    RunRecord: ("step", "newest", "note_waiting", "write"),
    PaceMeter: ("read",),
    Stragglers: ("beat",),
    GradientTimes: ("step", "complete", "end"),
    Timeline: ("step", "end"),
    UnsynchronizedRanks: ("end",),
}
ON_RANK_0 = {"Stragglers.beat", "RunRecord.note_waiting"}
BEATS = 2


def fail_in_turn(folder: Path) -> None:
    for kind, methods in METHODS.items():
        for name in methods:
            original = vars(kind)[name]

            def fails(*_: Any, called: str = f"{kind.__name__}.{name}", **__: Any) -> None:
                raise RuntimeError(f"{called} was made to fail")

            fails.__name__ = name
            setattr(kind, name, fails)
            kind.__init_subclass__()  # as where the class is defined
            try:
                one_job(folder)
            finally:
                setattr(kind, name, original)


def one_job(folder: Path) -> None:
    """Train for some beats, pass on a signal, and see that the threads and functions that end a job are alive."""
    world = cpudist.init("ccl", stall=60, pin=False)
    running = job.require()
    running.record.write_to(folder / "record.json")
    running.observers.add(GradientTimes(running, running.record))
    running.observers.add(Timeline(running, folder / "timeline.json", (2, 4)))
    running._context.stacks.figures()  # type: ignore[union-attr]  # as `cpudist top` has it
    interruption = Interruption(world.rank, world.size, running.store, running.heartbeat)
    interruption.begin()
    beats: list[float] = []
    running.heartbeat.add(lambda _store: beats.append(time.monotonic()))
    model: Any = cpudist.wrap(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last = False
    while not last:
        model(torch.ones(4, 8)).sum().backward()
        cpudist.step(optimizer)
        enough = torch.tensor([float(len(beats) >= BEATS)])
        dist.all_reduce(enough, dist.ReduceOp.MIN)
        if enough and world.rank == 1 and interruption._received is None:
            os.kill(os.getpid(), signal.SIGUSR1)
        last = interruption.is_last()
    interruption.end()
    signs = int(running.store.add("stall/signs", 0))
    assert signs >= BEATS, "--stall counts"
    assert running.statuses().keys() == {0, 1}, "the watch publishes"
    cpudist.shutdown()


if __name__ == "__main__":
    fail_in_turn(Path(sys.argv[1]))
    sys.stdout.write("completed\n")
