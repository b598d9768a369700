"""The events of a timeline in Chrome's trace format, which Perfetto opens.

Each rank is shown as a process. Times are nanoseconds by the clock of the job's store until the file is written.
"""

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpudist.console import size

Event = dict[str, Any]

# Track numbers of the optimizer's steps, threads, and communication. They are larger than any rank: Perfetto takes
# track 0, and the track with the number of its process (here the rank), for the main thread.
STEPS, _THREADS, _CALLS = 10_000, 10_001, 10_100
_ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "int": 4, "long int": 8}


def read(
    recorded: Mapping[str, Any], rank: int, backend: str, aligned: Callable[[int], int]
) -> tuple[list[Event], list[Event]]:
    """Return the operators and, in order of time, the calls of `backend` from a trace of torch's profiler.

    `aligned` converts the clock of this rank into the store's.
    """
    spans, calls, threads = [], [], dict[int, int]()
    for event in recorded["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            begin = recorded.get("baseTimeNanoseconds", 0) + round(1000 * event["ts"])
            end = begin + round(1000 * event["dur"])
            track = threads.setdefault(event["tid"], _THREADS + len(threads))
            own = span(rank, track, event["name"], aligned(begin), aligned(end))
            if event["name"].startswith(f"{backend}:"):
                own["args"] = {"call": event["name"].partition(":")[2].strip("_"), "bytes": _bytes(event["args"])}
                calls.append(own)
            else:
                spans.append(own)
    return spans, sorted(calls, key=lambda call: call["ts"])


def number(calls: Sequence[Event], before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """Number the collectives if all are of one group; `before` and `after` have the newest number of each group."""
    collectives = [call for call in calls if not call["args"]["call"].startswith(("send", "recv"))]
    made = [(before.get(group, 0), last) for group, last in after.items() if last != before.get(group, 0)]
    if [last - first for first, last in made] == [len(collectives)]:
        for sequence, call in enumerate(collectives, made[0][0] + 1):
            call["args"]["sequence"] = sequence


def place(calls: Sequence[Event], transport: str) -> None:
    """Name the calls, and distribute them over tracks so that calls on one track do not overlap."""
    ends: list[int] = []
    for call in calls:
        track = next((track for track, end in enumerate(ends) if end <= call["ts"]), len(ends))
        ends[track : track + 1] = [call["ts"] + call["dur"]]
        sequence, sent = call["args"].get("sequence"), call["args"]["bytes"]
        name = (f"{sequence}: " if sequence else "") + call["args"]["call"] + (f" of {size(sent)}" if sent else "")
        call |= {"tid": _CALLS + track, "name": name, "args": call["args"] | {"transport": transport}}


def write(file: Path, names: Mapping[int, str], events: Sequence[Event]) -> None:
    """Write a trace, with arrows between the ranks' parts of each collective."""
    zero = min(event["ts"] for event in events)
    labels = [("process_name", rank, STEPS, name) for rank, name in names.items()]
    for rank, track in sorted({(event["pid"], event["tid"]) for event in events}):
        kind = "steps" if track == STEPS else "communication" if track >= _CALLS else "operators"
        labels.append(("thread_name", rank, track, kind))
    named = [
        {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}} for kind, pid, tid, name in labels
    ]
    with gzip.open(file, "wt") if file.suffix == ".gz" else file.open("w") as stream:
        stream.write('{"traceEvents":[\n' + ",\n".join(map(json.dumps, named)))
        for event in (*events, *_arrows(events)):
            scaled = {"ts": (event["ts"] - zero) / 1000, "dur": event.get("dur", 0) / 1000}
            stream.write(",\n" + json.dumps(event | scaled, separators=(",", ":")))
        stream.write("\n]}\n")


def span(rank: int, track: int, name: str, begin: int, end: int) -> Event:
    return {"ph": "X", "pid": rank, "tid": track, "name": name, "ts": begin, "dur": end - begin}


def _collectives(events: Sequence[Event]) -> list[list[Event]]:
    """Return the calls of all ranks for each numbered collective, in order of time."""
    found = defaultdict(list)
    for event in events:
        if event.get("args", {}).get("sequence"):
            found[event["args"]["call"], event["args"]["sequence"]].append(event)
    return [sorted(same, key=lambda call: call["ts"]) for same in found.values()]


def _arrows(events: Sequence[Event]) -> Iterator[Event]:
    for number, same in enumerate(_collectives(events)):
        for call, phase in zip(same, ["s", *"t" * (len(same) - 2), "f"], strict=False):
            where = {key: call[key] for key in ("pid", "tid", "ts")}
            yield {"ph": phase, "id": number, "cat": "call", "name": "call", "bp": "e", **where}


def _bytes(arguments: Mapping[str, Any]) -> int | None:
    """Return the bytes of the tensors of a call; None: unknown."""
    tensors = zip(arguments.get("Input type", ()), arguments.get("Input Dims", ()), strict=False)
    return sum(_ITEM_BYTES[kind] * math.prod(shape) for kind, shape in tensors if kind in _ITEM_BYTES) or None
