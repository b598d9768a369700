"""`--timeline`: record some optimizer steps of all ranks with torch's profiler, and write one trace of them.

Every rank sends its part through the job's store, and rank 0 writes the file.
"""

import gzip
import heapq
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.distributed import DistStoreError
from torch.profiler import ProfilerActivity, profile

from cpudist.console import names_of, number_of, say
from cpudist.errors import UserError
from cpudist.observability import trace_events
from cpudist.observability.observers import ObservedJob, Observer
from cpudist.observability.trace_events import STEPS, Event
from cpudist.store import StoreLost

_SPANS = 350_000  # Most spans of all ranks together; the trace is then smaller than 50 MB.
_GATHER_SECONDS = 60.0
_ROUND_TRIPS = 20  # Round trips to the store's clock; the shortest one counts.


class Timeline(Observer):
    """Records the optimizer steps `steps[0]` to `steps[1]` - 1, counted from 0; rank 0 writes them to `file`.

    Ranks that do not compute on CPUs, and a file that cannot be written, are a UserError.
    """

    def __init__(self, job: ObservedJob, file: Path, steps: tuple[int, int]) -> None:
        if job.world.device_type != "cpu":
            raise UserError(f"--timeline records CPUs only; leave it out with the backend {job.world.backend}")
        try:
            if job.world.rank == 0:
                tempfile.TemporaryFile(dir=file.parent).close()
        except OSError as error:
            raise UserError(f"cannot write {file} ({error.strerror}); give another --timeline") from None
        self._job, self._file, self._steps = job, file, steps
        self._made = 0
        self._stages = {steps[0]: self._begin, steps[1]: self._finish}  # by number of steps
        self._numbers: list[dict[str, int]] = []
        # Readings in ns: this rank's clock, the offset of the store's clock from it, and the error of the offset.
        self._clock: list[tuple[int, int, int]] = []
        self._marks: list[int] = []  # wall clock at the begin of the first step and at the end of every step

    def step(self, optimizer: Any) -> None:
        """Note the end of a step; begin or end the recording after the steps that `steps` names."""
        self._made += 1
        if self._steps[0] <= self._made <= self._steps[1]:
            self._marks.append(time.time_ns())
        self._stages.pop(self._made, lambda: None)()

    def end(self) -> None:
        """If the training ends before `steps[1]`, write the steps that were recorded."""
        stages, self._stages = self._stages, {}
        if stages and len(self._marks) > 1:
            self._finish()
        elif stages:
            if self._marks:
                self._profile.stop()
            if self._job.world.rank == 0:
                say(f"no timeline: the training ended after {number_of(self._made, 'step')}; give an earlier --steps")

    def _begin(self) -> None:
        if torch.autograd.profiler._is_profiler_enabled:
            self._stages.clear()
            if self._job.world.rank == 0:
                say("no timeline: the script runs torch's profiler itself; leave it out, or give other --steps")
            return
        self._read_clock()
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True)
        self._profile.start()

    def _finish(self) -> None:
        """Stop recording and send this rank's part; rank 0 writes the trace of all."""
        self._profile.stop()
        self._read_clock()
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(trace))
            self._recorded = json.loads(trace.read_bytes())
        world, store = self._job.world, self._job.store
        name = f"rank {world.rank} ({world.hosts[world.node_rank]})"
        part = {"name": name, "events": self._events(), "clock_error": max(error for *_, error in self._clock)}
        keys = [f"timeline/{rank}" for rank in range(world.size)]
        with suppress(StoreLost):  # the job ends anyway
            store.set(keys[world.rank], gzip.compress(json.dumps(part).encode(), 3))  # type: ignore[arg-type]
            if world.rank == 0:
                with suppress(DistStoreError):
                    store.wait(keys, timedelta(seconds=min(_GATHER_SECONDS, self._job.timeout / 2)))
                sent = {rank: store.get(key) for rank, key in enumerate(keys) if store.check([key])}
                self._write({rank: json.loads(gzip.decompress(data)) for rank, data in sent.items()})

    def _events(self) -> list[Event]:
        world, backend, aligned = self._job.world, self._job.backend, partial(align, self._clock)
        spans, calls = trace_events.read(self._recorded, world.rank, backend.name, aligned)
        trace_events.number(calls, *self._numbers)
        trace_events.place(calls, backend.transport() or backend.name)
        steps = [
            trace_events.span(world.rank, STEPS, f"step {number}", aligned(begin), aligned(end))
            for number, (begin, end) in enumerate(pairwise(self._marks), self._steps[0])
        ]
        return [*steps, *calls, *heapq.nlargest(_SPANS // world.size, spans, key=lambda one: one["dur"])]

    def _write(self, parts: Mapping[int, Mapping[str, Any]]) -> None:
        if missing := [f"rank {rank}" for rank in range(self._job.world.size) if rank not in parts]:
            say(f"the timeline lacks {names_of(missing)}: no part of it came in time")
        names = {rank: part["name"] for rank, part in parts.items()}
        events = [event for part in parts.values() for event in part["events"]]
        try:
            trace_events.write(self._file, names, events)
        except OSError as error:
            say(f"the timeline was not written: {error}")
        first, last = self._steps[0], self._steps[0] + len(self._marks) - 2
        wrong = max(part["clock_error"] for part in parts.values()) / 1000
        say(f"{self._file} has steps {first} to {last}, for ui.perfetto.dev; the clocks agree within {wrong:.0f} µs")

    def _read_clock(self) -> None:
        """Compare this rank's clock with the store's, and note the number of each group's newest collective."""
        newest = self._job.backend.progress() or ()
        self._numbers.append({group: number for group, number in newest if number is not None})
        read = getattr(self._job.store, "clock", time.time_ns)  # the store of a job of one process has no clock
        trips = []
        for _ in range(_ROUND_TRIPS):
            before, theirs, after = time.time_ns(), read(), time.time_ns()
            middle = (before + after) // 2
            trips.append((middle, theirs - middle, (after - before) // 2))
        self._clock.append(min(trips, key=lambda trip: trip[2]))


def align(readings: Sequence[tuple[int, int, int]], moment: int) -> int:
    """Convert a time of this rank's wall clock to the store's clock, using one reading before and one after it."""
    (first, ahead, _), (last, ahead_then, _) = readings
    return moment + ahead + (ahead_then - ahead) * (moment - first) // max(last - first, 1)
