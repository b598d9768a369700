"""`--timeline`: one trace of all ranks."""

import gzip
import json
import re
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from jobs import completed, mpirun, train
from observed import ALONE, Observed

from cpudist.errors import UserError
from cpudist.observability import timeline, trace_events
from cpudist.observability.timeline import Timeline, align
from cpudist.observability.trace_events import STEPS, Event, span
from cpudist.world import World

_SCRIPT = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
data = torch.utils.data.DataLoader(torch.ones(16, 256), batch_size=2)
model = DistributedDataParallel(torch.nn.Linear(256, 1000))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in data:
    loss = model(batch).sum()
    time.sleep(0.3 * dist.get_rank())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _call(rank: int, begin: int, end: int, sequence: int | None = None, name: str = "all_reduce") -> Event:
    return {**span(rank, 0, name, begin, end), "args": {"call": name, "bytes": 8, "sequence": sequence}}


def _by_track(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


@pytest.mark.job
@pytest.mark.parametrize(("backend", "transport"), [("ccl", "mpi"), ("gloo", "tcp")])
def test_a_job_whose_rank_1_is_late(backend: str, transport: str, tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "trace.json.gz"
    script.write_text(_SCRIPT)
    options = ["--backend", backend, "--timeline", str(file), "--steps", "3:5"]
    ended = completed(mpirun(2, *train(*options, str(script))), 120)
    assert "USDT" not in ended.stderr, "torch's profiler is quiet"
    assert re.search(r"^cpudist: \S+ has steps 3 to 4, .* the clocks agree within \d+ µs\n", ended.stderr, re.MULTILINE)

    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    tracks = _by_track(events)
    steps, calls = ([tracks[rank, track] for rank in (0, 1)] for track in (STEPS, trace_events._CALLS))
    numbers = [call["args"]["sequence"] for call in calls[0]]
    assert {"steps", "operators", "communication"} < {event["args"]["name"] for event in events if event["ph"] == "M"}
    arrows = [(event["ph"], event["id"]) for event in events if event["ph"] in "stf"]
    assert arrows == [(phase, number) for number in range(len(numbers)) for phase in "sf"]
    for rank in (0, 1):
        assert [step["name"] for step in steps[rank]] == ["step 3", "step 4"]
        assert [(call["name"], call["args"]["transport"]) for call in calls[rank]] == [
            (f"{number}: all_reduce of 1004 KB", transport) for number in numbers
        ]
        for step, call in zip(steps[rank], calls[rank], strict=True):
            assert step["ts"] - 1 <= call["ts"] <= step["ts"] + step["dur"]
    for one, other in zip(*calls, strict=True):
        assert abs(one["ts"] + one["dur"] - other["ts"] - other["dur"]) < 200_000


class _Store(dist.HashStore):
    """A store whose clock is a second ahead."""

    def clock(self) -> int:
        return time.time_ns() + 10**9


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (2, "no timeline: the training ended after 2 steps; give an earlier --steps"),
        (3, "no timeline: the training ended after 3 steps; give an earlier --steps"),
        (4, r"{} has steps 3 to 3, for ui.perfetto.dev; the clocks agree within \d+ µs"),
        (9, r"{} has steps 3 to 4, for ui.perfetto.dev; the clocks agree within \d+ µs"),
    ],
)
def test_steps_are_recorded_unless_the_training_ends_before(
    made: int, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_SPANS", 1)
    monkeypatch.chdir(tmp_path)
    file, job, begin = tmp_path / "out.json", Observed(store=_Store()), time.time_ns()
    observer, large = Timeline(job, file, (3, 5)), torch.ones(1200, 1200)
    for _ in range(made):
        observer.step(None)
        large @ large
        torch.ones(2)
    observer.end()
    observer.end()
    assert re.fullmatch(rf"cpudist: {line.format(re.escape(str(file)))}\n", capsys.readouterr().err)
    assert [path.name for path in tmp_path.iterdir()] == (["out.json"] if made > 3 else [])
    if made > 3:
        sent = json.loads(gzip.decompress(job.store.get("timeline/0")))
        assert (sent["name"], [event["name"] for event in sent["events"]][:2]) == (
            "rank 0 (here)",
            ["step 3", "step 4"][: made - 3] + ["aten::matmul"][: 5 - made],
        )
        assert begin < sent["events"][0]["ts"] - 10**9 < time.time_ns()
    job.changes.undo()


def test_a_silent_rank_and_a_folder_that_has_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Observed(World(0, 2, 0, 2, 0, 1, "test", hosts=("here",)), timeout=0.2, store=dist.HashStore())
    (tmp_path / "out").mkdir()
    observer = Timeline(job, tmp_path / "out" / "trace.json", (1, 2))
    (tmp_path / "out").rmdir()
    for _ in range(2):
        observer.step(None)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "cpudist: the timeline lacks rank 1: no part of it came in time"
    assert lines[1].startswith("cpudist: the timeline was not written: [Errno 2]")
    job.changes.undo()


def test_a_script_that_runs_the_profiler_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    observer = Timeline(Observed(), tmp_path / "trace.json", (1, 2))
    with torch.profiler.profile():
        for _ in range(3):
            observer.step(None)
    observer.end()
    assert capsys.readouterr().err.count("no timeline: the script runs torch's profiler itself") == 1


def test_where_there_can_be_no_timeline() -> None:
    with pytest.raises(UserError, match=r"cannot write /proc/none/trace.json \(No such file"):
        Timeline(Observed(), Path("/proc/none/trace.json"), (3, 5))
    Timeline(Observed(replace(ALONE, rank=1)), Path("/proc/none/trace.json"), (3, 5))  # rank 0 writes
    with pytest.raises(UserError, match="CPUs only; leave it out with the backend gloo"):
        Timeline(Observed(replace(ALONE, device_type="xla")), Path("trace.json"), (3, 5))


@given(
    offset=st.integers(-(10**12), 10**12),
    drift=st.integers(-100_000, 100_000),  # nanoseconds in the time between the readings
    errors=st.tuples(st.integers(-50_000, 50_000), st.integers(-50_000, 50_000)),
    at=st.lists(st.integers(0, 10**10), min_size=2, max_size=10),
)
def test_aligned_clocks_differ_by_their_errors(offset: int, drift: int, errors: tuple[int, int], at: list[int]) -> None:
    length = 10**10
    readings = [(0, offset + errors[0], 50_000), (length, offset + drift + errors[1], 50_000)]
    for moment in at:
        assert abs(align(readings, moment) - (moment + offset + drift * moment / length)) <= max(map(abs, errors)) + 1
    aligned = [align(readings, moment) for moment in sorted(at)]
    assert aligned == sorted(aligned), "spans nest as before"


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100))))
def test_calls_of_one_track_do_not_overlap(times: list[tuple[int, int]]) -> None:
    calls = [_call(0, begin, begin + duration) for begin, duration in sorted(times)]
    trace_events.place(calls, "tcp")
    for track in _by_track(calls).values():
        for one, following in pairwise(track):
            assert one["ts"] + one["dur"] <= following["ts"]


def test_only_the_calls_of_one_group_are_numbered() -> None:
    calls = [_call(0, 0, 1), _call(0, 1, 2, name="send"), _call(0, 2, 3)]
    numbers: list[Any] = []
    for before, after in [
        ({"": 7, "other": 3}, {"": 9, "other": 3}),  # one group
        ({"": 7}, {"": 8, "other": 1}),  # two
        ({"": 7}, {"": 12}),  # some are not in the profile
        ({}, {}),  # the backend counts none
    ]:
        copies = [{**call, "args": dict(call["args"])} for call in calls]
        trace_events.number(copies, before, after)
        numbers.append([call["args"]["sequence"] for call in copies])
    assert numbers == [[8, None, 9], *3 * [[None, None, None]]]
