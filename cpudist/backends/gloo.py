"""The gloo backend, which comes with torch: slower than ccl, but it needs nothing else."""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from cpudist.backends.interface import Call, Calls
from cpudist.backends.process_group import GroupRanks, ProcessGroupBackend, groups

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.world import World


class GlooBackend(ProcessGroupBackend):
    """`torch.distributed`'s own gloo, over TCP."""

    name = "gloo"

    def __init__(self) -> None:
        self._summary: dict[str, Any] = {}  # pg_status of the flight recorder at the last poll
        self._lasting: tuple[float, Calls] | None = None  # time of the last dump, and its calls
        # Offset of the wall clock, which the recorder uses, from the monotonic clock, in seconds: at the last poll, and
        # at the last change of the summary.
        self._ahead = self._ahead_then = time.time() - time.monotonic()

    def start(self, world: World, store: Store, timeout: float) -> None:
        # torch keeps 2 000 calls by default; a dump of them takes a third of a second.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "100")
        super().start(world, store, timeout)

    def unavailable(self) -> str | None:
        if dist.is_available() and dist.is_gloo_available():
            return None
        return "this torch was built without gloo; install torch from PyPI"

    def transport(self) -> str | None:
        return "tcp" if dist.is_initialized() else None

    def progress(self) -> list[tuple[str, int | None]] | None:
        status = _recorded(calls=False).get("pg_status")
        kinds = ("last_completed_collective", "last_enqueued_collective")
        return status and [(group, int(numbers[kind])) for group, numbers in status.items() for kind in kinds]

    def calls(self) -> Calls | None:
        """Return the collectives in torch's flight recorder; it records gloo's from torch 2.9 on.

        A dump takes long, the summary less than a millisecond. So the calls are dumped only if the summary has not
        changed since the last poll, and once for each summary.
        """
        summary = _recorded(calls=False).get("pg_status")
        if not summary:
            return None
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        if summary != self._summary:
            self._summary, self._lasting, self._ahead_then = summary, None, min(before, self._ahead)
            return Calls()
        found = self._lasting  # read once: another thread may change it
        if found is None:
            found = self._lasting = time.monotonic(), _calls(self._ahead_then)
        then, calls = found
        waited = time.monotonic() - then
        return replace(calls, under_way=tuple(replace(call, seconds=call.seconds + waited) for call in calls.under_way))


def _recorded(*, calls: bool) -> dict[str, Any]:
    recorder = torch._C._distributed_c10d
    dump: dict[str, Any] = json.loads(recorder._dump_fr_trace_json(calls, True))  # type: ignore[attr-defined]
    return dump


def _calls(ahead: float) -> Calls:
    known = groups()
    under_way: list[Call] = []
    finished: dict[str, Call] = {}
    for entry in _recorded(calls=True).get("entries", ()):
        name = entry["process_group"][0]
        if name not in known or entry["is_p2p"]:
            continue
        if entry["retired"]:
            finished[name] = _call(entry, known[name], ahead)
        else:
            under_way.append(_call(entry, known[name], ahead))
    return Calls(tuple(under_way), tuple(finished.values()))


def _call(entry: dict[str, Any], group: GroupRanks, ahead: float) -> Call:
    """Convert an entry of the flight recorder; its clock is the monotonic clock plus `ahead` seconds.

    torch's tools/flight_recorder describes the format.
    """
    # The recorder writes "Float" and "BFloat16" for torch.float and torch.bfloat16.
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
        seconds=max(time.monotonic() + ahead - entry["time_created_ns"] * 1e-9, 0.0),
    )
