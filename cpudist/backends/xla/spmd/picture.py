"""How tensors lie on devices, in text, as the runtime says and not as it was asked."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from torch import Tensor
from torch_xla.distributed import spmd

from cpudist.backends.xla.spmd import specs


def of_mesh(text: str, mesh: Any) -> str:
    """The devices of a mesh, the last axis from left to right."""
    devices = mesh.get_logical_mesh()
    rows = devices.reshape(-1, devices.shape[-1])
    lines = ["  ".join(f"[{device}]" for device in row) for row in rows]
    return f"mesh {text} of {devices.size} devices:\n" + "\n".join(f"    {line}" for line in lines)


def of_tensor(name: str, tensor: Tensor, spec: specs.Spec) -> str:
    """One line: a tensor's shape, its spec, and which devices hold which piece.

    Pieces beside each other along the last axis that is cut are separated by ` | `, along others by ` / `.
    """
    shape = " x ".join(map(str, tensor.shape))
    sharded = spmd.wrap_if_sharded(tensor)
    if not isinstance(sharded, spmd.XLAShardedTensor) or not any(specs.names_in(entry) for entry in spec):
        return f"{name}  {shape}  {specs.text_of(spec)}  whole on every device"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a non-tuple")  # the runtime's own code, which torch has outgrown
        shards = sharded.local_shards
        piece = " x ".join(map(str, shards[0].unpadded_data.shape))
    holders: dict[tuple[int, ...], list[str]] = {}
    for shard in shards:
        start = tuple(index.start or 0 for index in shard.indices)
        holders.setdefault(start, []).append(str(shard.shard_device).rpartition(":")[2])
    return f"{name}  {shape}  {specs.text_of(spec)}  pieces of {piece}: {_lined_up(holders)}"


def _lined_up(holders: dict[tuple[int, ...], list[str]]) -> str:
    starts = np.array(sorted(holders))
    cut = [axis for axis in range(starts.shape[1]) if len(set(starts[:, axis])) > 1]
    text, before = "", None
    for start in sorted(holders):
        if before is not None:
            same_row = not cut or all(start[axis] == before[axis] for axis in cut[:-1])
            text += " | " if same_row else " / "
        text += ",".join(holders[start])
        before = start
    return text
