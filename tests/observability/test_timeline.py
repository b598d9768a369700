"""`--timeline`: one trace of all ranks, and what it says in words."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import mpirun, run, train
from observed import Observed

from cpudist.errors import UserError
from cpudist.observability import trace_events
from cpudist.observability.time_shares import divide, report
from cpudist.observability.timeline import Timeline, align
from cpudist.observability.trace_events import STEPS, Event, span

_SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
data = torch.utils.data.DataLoader(torch.ones(16, 256), batch_size=2)
model = DistributedDataParallel(torch.nn.Linear(256, 1000))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for number, batch in enumerate(data):
    if number == int(sys.argv[1]):
        break
    loss = model(batch).sum()
    time.sleep(0.1 * dist.get_rank())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_GRADIENTS = 4 * (256 * 1000 + 1000)


def _call(rank: int, begin: int, end: int, sequence: int | None = None, name: str = "all_reduce") -> Event:
    return {**span(rank, 0, name, begin, end), "args": {"call": name, "bytes": 8, "sequence": sequence}}


def _by_track(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


# The job


@pytest.fixture(scope="module", params=["gloo", "ccl"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Event], str]:
    """The backend of a job whose rank 1 is late, its trace, and what it said."""
    folder = tmp_path_factory.mktemp(request.param)
    script, file = folder / "script.py", folder / "trace.json.gz"
    script.write_text(_SCRIPT)
    options = ("--backend", request.param, "--timeline", str(file), "--steps", "3:5")
    ended = run(mpirun(2, *train(*options, str(script), "8")), timeout=120)
    assert ended.returncode == 0, ended.output
    assert "USDT" not in ended.stderr, "torch's profiler is quiet"
    return request.param, json.loads(gzip.decompress(file.read_bytes()))["traceEvents"], ended.stderr


@pytest.mark.job
def test_ranks_are_processes_and_calls_have_numbers_sizes_and_transports(job: tuple[str, list[Event], str]) -> None:
    backend, events, _ = job
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [re.sub(r"\(.+\)", "(HOST)", name) for name in names] == ["rank 0 (HOST)", "rank 1 (HOST)"]
    for rank in (0, 1):
        own = [event for event in events if event["pid"] == rank]
        assert [event["name"] for event in own if event["name"].startswith("step ")] == ["step 3", "step 4"]
        assert {"aten::addmm", "Optimizer.step#SGD.step"} <= {event["name"] for event in own}
        calls = [event["args"] | {"name": event["name"]} for event in own if "call" in event.get("args", {})]
        assert len(calls) == 2
        tracks = [(event["tid"], event["args"]["name"]) for event in own if event["name"] == "thread_name"]
        assert [name for _, name in tracks] == ["steps", "operators", "communication"]
        assert {event["tid"] for event in own} == {track for track, _ in tracks}
        assert min(tracks)[0] > 1, "Perfetto takes 0, and a number of a process, for the main thread"
        for call, following in zip(calls, [*calls[1:], None], strict=True):
            assert call["name"] == f"{call['sequence']}: all_reduce of 1004 KB"
            assert (call["bytes"], call["transport"]) == (_GRADIENTS, {"gloo": "tcp", "ccl": "mpi"}[backend])
            assert following is None or following["sequence"] == call["sequence"] + 1


@pytest.mark.job
def test_arrows_lead_from_each_call_to_that_of_the_late_rank(job: tuple[str, list[Event], str]) -> None:
    _, events, _ = job
    calls = {(event["pid"], event["tid"], event["ts"]): event for event in events if "call" in event.get("args", {})}
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append((event["ph"], calls[event["pid"], event["tid"], event["ts"]]))
    assert len(arrows) == 2
    for (start, early), (finish, late) in arrows.values():
        assert (start, finish, early["pid"], late["pid"]) == ("s", "f", 0, 1)
        assert early["args"]["sequence"] == late["args"]["sequence"]


@pytest.mark.job
def test_spans_of_a_track_nest(job: tuple[str, list[Event], str]) -> None:
    for spans in _by_track(job[1]).values():
        open_until: list[float] = []
        for one in sorted(spans, key=lambda one: (one["ts"], -one["dur"])):
            while open_until and open_until[-1] <= one["ts"]:
                open_until.pop()
            end = round(one["ts"] + one["dur"], 3)
            assert not open_until or end <= open_until[-1] + 0.001
            open_until.append(end)


@pytest.mark.job
def test_the_late_rank_is_named(job: tuple[str, list[Event], str]) -> None:
    share = re.search(r"waiting for rank 1 \(.+\) (\d+) %, for others", job[2])
    assert share, job[2]
    assert int(share[1]) > 25
    assert re.search(r"try first: find out why rank 1 \(.+\) is late", job[2]), job[2]


@pytest.mark.job
@pytest.mark.parametrize(
    ("steps", "line"), [("4", "has steps 3 to 3"), ("3", "no timeline: the training ended after 3 steps")]
)
def test_a_training_that_ends_early(steps: str, line: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    options = ("--backend", "gloo", "--timeline", str(tmp_path / "trace.json"), "--steps", "3:9")
    ended = run(train(*options, str(script), steps), timeout=60)
    assert ended.returncode == 0, ended.output
    assert line in ended.stderr
    assert (tmp_path / "trace.json").exists() == ("has steps" in line)


def test_a_folder_that_does_not_exist_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"cannot write /proc/none/trace.json \(No such file"):
        Timeline(Observed(), Path("/proc/none/trace.json"), (3, 5))


# Its parts


@given(
    offset=st.integers(-(10**12), 10**12),
    drift=st.integers(-100_000, 100_000),  # nanoseconds in the time between the readings
    errors=st.tuples(st.integers(-50_000, 50_000), st.integers(-50_000, 50_000)),
    at=st.lists(st.integers(0, 10**10), min_size=2, max_size=10),
)
def test_aligned_clocks_differ_by_the_error_of_their_readings(
    offset: int, drift: int, errors: tuple[int, int], at: list[int]
) -> None:
    length = 10**10
    readings = [(0, offset + errors[0], 50_000), (length, offset + drift + errors[1], 50_000)]
    for time in at:
        assert abs(align(readings, time) - (time + offset + drift * time / length)) <= max(map(abs, errors)) + 1
    aligned = [align(readings, time) for time in sorted(at)]
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


def test_what_the_profiler_has_written() -> None:
    def event(name: str, kinds: list[str], dims: list[Any], category: str = "user_annotation") -> dict[str, Any]:
        arguments = {"Input type": kinds, "Input Dims": dims}
        return {"ph": "X", "cat": category, "name": name, "tid": 9, "ts": 0.5, "dur": 2.0, "args": arguments}

    recorded = {
        "baseTimeNanoseconds": 1_000_000,
        "traceEvents": [
            event("tcp:all_reduce", ["float", "c10::BFloat16"], [[3, 4], [5]]),
            event("tcp:barrier", [], []),
            event("tcp:gather", ["TensorList", ""], [[[2]], []]),
            event("aten::mm", ["float"], [[2, 2]], "cpu_op"),
            {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "tid": "x", "ts": 0, "dur": 9},
            {"ph": "M", "name": "process_name", "args": {}},
        ],
    }
    spans, calls = trace_events.read(recorded, 2, "tcp", lambda time: time + 7)
    assert spans == [span(2, trace_events._THREADS, "aten::mm", 1_000_507, 1_002_507)]
    assert [call["args"] for call in calls] == [
        {"call": "all_reduce", "bytes": 58},
        {"call": "barrier", "bytes": None},
        {"call": "gather", "bytes": None},
    ]


def test_what_the_file_has(tmp_path: Path) -> None:
    calls = [_call(rank, 2000 + 500 * rank, 5000, sequence=4) for rank in (2, 0, 1)]
    calls += [_call(0, 6000, 7000, name="send"), {**_call(0, 6500, 7500), "args": {"call": "recv", "bytes": 0}}]
    for rank in range(3):
        trace_events.place([call for call in calls if call["pid"] == rank], "tcp")
    events = [span(0, STEPS, "step 3", 1000, 8000), span(0, trace_events._THREADS, "aten::mm", 1000, 1500), *calls]
    found = []
    for file, read in (("trace.json", Path.open), ("trace.json.gz", gzip.open)):
        trace_events.write(tmp_path / file, {0: "rank 0 (h0)", 1: "rank 1 (h0)"}, events)
        with read(tmp_path / file) as stream:
            found.append(json.load(stream)["traceEvents"])
    assert found[0] == found[1]
    assert [(one["pid"], one["tid"], one["name"], one["args"]["name"]) for one in found[0] if one["ph"] == "M"] == [
        (0, 10_000, "process_name", "rank 0 (h0)"),
        (1, 10_000, "process_name", "rank 1 (h0)"),
        (0, 10_000, "thread_name", "steps"),
        (0, 10_001, "thread_name", "operators"),
        *(
            (rank, tid, "thread_name", "communication")
            for rank, tid in ((0, 10_100), (0, 10_101), (1, 10_100), (2, 10_100))
        ),
    ]
    spans = [(one["pid"], one["tid"], one["ts"], one["dur"], one["name"]) for one in found[0] if one["ph"] == "X"]
    assert spans == [
        (0, 10_000, 0, 7, "step 3"),
        (0, 10_001, 0, 0.5, "aten::mm"),
        *((rank, 10_100, 1 + rank / 2, 3 - rank / 2, "4: all_reduce of 8 B") for rank in (2, 0, 1)),
        (0, 10_100, 5, 1, "send of 8 B"),
        (0, 10_101, 5.5, 1, "recv"),
    ]
    arrows = [one for one in found[0] if one["ph"] not in "MX"]
    same = {"id": 0, "cat": "call", "name": "call", "bp": "e", "dur": 0, "tid": 10_100}
    assert arrows == [{"ph": phase, "pid": rank, "ts": 1 + rank / 2, **same} for rank, phase in enumerate("stf")]
    assert {one["args"]["transport"] for one in found[0] if "call" in one.get("args", ())} == {"tcp"}


def _events() -> Iterator[Event]:
    """Two ranks: rank 0 computes for 30 of 100 and calls, rank 1 after 50; both end the call after 60."""
    for rank, until in ((0, 30), (1, 50)):
        yield span(rank, 0, "step 3", 0, 100)
        yield span(rank, 5, "autograd::engine::evaluate_function: MmBackward0", 0, 60)
        yield span(rank, 5, "aten::linear", 0, until)
        yield span(rank, 5, "aten::mm", 5, until - 5)
        yield span(rank, 5, "Optimizer.step#SGD.step", 60, 80)
        yield span(rank, 5, "aten::add_", 60, 79)
        yield span(rank, 5, "Optimizer.step#SGD.step", 100, 120)
        yield span(rank, 5, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 80, 90)
        yield _call(rank, until, 60, sequence=4) | {"tid": 1 << 23}


def test_each_moment_counts_once() -> None:
    shares, waited = divide(list(_events()))
    assert {name: round(share, 1) for name, share in shares.items()} == {
        "computing": 40,
        "optimizer": 20,
        "loading data": 10,
        "communicating": 10,
        "waiting": 10,
        "Python and others": 10,
    }
    assert {rank: round(share, 1) for rank, share in waited.items()} == {1: 10}


def test_operators_are_named_where_torch_calls_them() -> None:
    names = {0: "rank 0 (h0)", 1: "rank 1 (h1)"}
    lines = report(list(_events()), names)
    assert lines[1] == "waiting for rank 1 (h1) 10 %, for others 0 %"
    assert lines[2:4] == ["aten::linear 40 %", "aten::add_ 19 %"]
