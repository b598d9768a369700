"""The backend that comes with torch: slower than ccl, needs nothing else."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from cpudist.backends.calls import Call, Calls
from cpudist.backends.process_group import Members, ProcessGroupBackend, groups


class GlooBackend(ProcessGroupBackend):
    """`torch.distributed`'s own gloo, over TCP."""

    name = "gloo"

    def __init__(self) -> None:
        self._status: dict[str, Any] = {}  # the flight recorder's summary at the last look, and when and what it had
        self._under_way: tuple[float, tuple[Call, ...]] | None = None

    def unavailable(self) -> str | None:
        if dist.is_available() and dist.is_gloo_available():
            return None
        return "this torch was built without gloo; install torch from PyPI"

    def transport(self) -> str | None:
        return "tcp" if dist.is_initialized() else None

    def calls(self) -> Calls | None:
        """What torch's flight recorder has seen, which gloo writes to from torch 2.9 on: collectives only.

        A full dump of it takes a third of a second, its summary less than a millisecond. So a call under way is looked
        up once, and only when the summary is the same as at the last look: then it lasts.
        """
        known = groups()
        status = {name: state for name, state in _recorded(calls=False)["pg_status"].items() if name in known}
        if not status:
            return None
        if status != self._status:
            self._status, self._under_way = status, None
            under_way: tuple[Call, ...] = ()
        elif all(state["last_enqueued_collective"] == state["last_completed_collective"] for state in status.values()):
            under_way = ()
        else:
            if self._under_way is None:
                self._under_way = time.monotonic(), _calls_under_way(known)
            then, calls = self._under_way
            under_way = tuple(replace(call, seconds=call.seconds + time.monotonic() - then) for call in calls)
        finished = {name: int(state["last_completed_collective"]) for name, state in status.items()}
        return Calls(
            under_way,
            tuple(
                Call("collective", known[name].name, known[name].ranks, sequence)
                for name, sequence in finished.items()
                if sequence > 0
            ),
        )


def _recorded(*, calls: bool) -> dict[str, Any]:
    recorder = torch._C._distributed_c10d
    dump: dict[str, Any] = json.loads(recorder._dump_fr_trace_json(calls, True))  # type: ignore[attr-defined]
    return dump


def _calls_under_way(known: Mapping[str, Members]) -> tuple[Call, ...]:
    entries = [entry for entry in _recorded(calls=True).get("entries", ()) if not (entry["retired"] or entry["is_p2p"])]
    named = [(entry, known.get(entry["process_group"][0])) for entry in entries]
    return tuple(_call(entry, group) for entry, group in named if group is not None)


def _call(entry: dict[str, Any], group: Members) -> Call:
    """An entry of the flight recorder, as torch's tools/flight_recorder describes them."""
    # "Float" and "BFloat16", which torch also knows as torch.float and torch.bfloat16.
    dtypes = [getattr(torch, name.lower(), None) for name in entry["output_dtypes"]]
    known = [dtype for dtype in dtypes if isinstance(dtype, torch.dtype)]
    sizes = entry["output_sizes"]
    counts = [math.prod(size) for size in sizes]
    return Call(
        entry["profiling_name"].removeprefix("gloo:"),
        group.name,
        group.ranks,
        sequence=entry["collective_seq_id"],
        bytes=sum(n * dtype.itemsize for n, dtype in zip(counts, known, strict=True)) if known == dtypes else None,
        dtype=str(known[0]).removeprefix("torch.") if known else "",
        shape=tuple(sizes[0]) if sizes else (),
        seconds=max(time.time() - entry["time_created_ns"] * 1e-9, 0.0),
    )
