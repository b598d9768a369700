"""The backend that comes with torch: slower than ccl, needs nothing else."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import torch
import torch.distributed as dist

from cpudist.backends.calls import Call, Calls
from cpudist.backends.process_group import Members, ProcessGroupBackend, groups


class GlooBackend(ProcessGroupBackend):
    """`torch.distributed`'s own gloo, over TCP."""

    name = "gloo"

    def unavailable(self) -> str | None:
        if dist.is_available() and dist.is_gloo_available():
            return None
        return "this torch was built without gloo; install torch from PyPI"

    def transport(self) -> str | None:
        return "tcp" if dist.is_initialized() else None

    def calls(self) -> Calls | None:
        """What torch's flight recorder has seen, which gloo writes to from torch 2.9 on: collectives only."""
        dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))  # type: ignore[attr-defined]
        known = groups()
        under_way, finished = [], {}
        for entry in dump.get("entries", ()):
            name = entry["process_group"][0]
            if name not in known or entry["is_p2p"]:
                continue
            call = _call(entry, known[name])
            if entry["retired"]:
                finished[name] = call
            else:
                under_way.append(call)
        return Calls(tuple(under_way), tuple(finished.values())) if under_way or finished else None


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
