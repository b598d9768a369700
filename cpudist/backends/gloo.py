"""The gloo backend of torch. It is slower than ccl, but needs nothing besides torch."""

import json
import math
import os
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Store

from cpudist.backends.interface import Call, Calls
from cpudist.backends.process_group import GroupRanks, ProcessGroupBackend, groups
from cpudist.world import World


class GlooBackend(ProcessGroupBackend):
    """`torch.distributed`'s own gloo, over TCP."""

    name = "gloo"

    def __init__(self) -> None:
        self._summary: dict[str, Any] | None = None  # pg_status of the flight recorder at the last poll
        self._since = 0.0  # time of the first poll that found this summary
        self._lasting: Calls | None = None  # the calls dumped at this summary; None: not dumped yet

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
        """Return the collectives in torch's flight recorder, which records gloo's from torch 2.9 on.

        A dump of the calls takes long, a summary less than a millisecond. So the calls are dumped once for each
        summary, and only if a second poll finds the same summary. The `seconds` of a call count from the first of the
        two polls, because the recorder's times are of the wall clock, which may be adjusted.
        """
        summary = _recorded(calls=False).get("pg_status")
        if summary is None:
            return None
        if summary != self._summary:
            self._summary, self._lasting, self._since = summary, None, time.monotonic()
            return Calls()
        found = self._lasting  # read once: another thread may change it
        if found is None:
            found = self._lasting = _calls()
        waited = time.monotonic() - self._since
        return replace(found, under_way=tuple(replace(call, seconds=waited) for call in found.under_way))


def _recorded(*, calls: bool) -> dict[str, Any]:
    recorder = torch._C._distributed_c10d
    dump: dict[str, Any] = json.loads(recorder._dump_fr_trace_json(calls, True))  # type: ignore[attr-defined]
    return dump


def _calls() -> Calls:
    known, recorded = groups(), _recorded(calls=True)
    under_way: list[Call] = []
    finished: dict[str, Call] = {}
    for entry in recorded.get("entries", ()):
        name = entry["process_group"][0]
        if name not in known or entry["is_p2p"]:
            continue
        if entry["retired"]:
            finished[name] = _call(entry, known[name])
        else:
            under_way.append(_call(entry, known[name]))
    # The recorder drops old entries, but keeps a status for every group that has had a collective.
    unused = tuple(group.name for name, group in known.items() if name not in recorded["pg_status"])
    return Calls(tuple(under_way), tuple(finished.values()), unused)


def _call(entry: dict[str, Any], group: GroupRanks) -> Call:
    """Convert an entry of the flight recorder; torch's tools/flight_recorder describes the format."""
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
    )
