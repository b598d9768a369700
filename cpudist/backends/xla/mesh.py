"""The axes of `--mesh`, and the runtime's mesh over all devices that they make.

    data=4              four devices, each with a quarter of the batch
    data=2,model=-1     two halves of the batch; all other devices divide the parameters
    data=2x4,model=2    two TPU slices, connected by the data centre's network, of four by two chips each

Source: PyTorch/XLA 2.8, `torch_xla.distributed.spmd.Mesh` and `HybridMesh`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cpudist.errors import UserError

# The axes that divide a batch. All axes but data divide parameters.
BATCH_AXES = ("data", "fsdp")

_AXIS = re.compile(r"([A-Za-z_]\w*)=(?:(\d+)x)?(-1|\d+)")


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh: `inner` devices of each of `slices` TPU slices, which the data centre's network connects."""

    name: str
    inner: int
    slices: int = 1

    @property
    def size(self) -> int:
        """The number of devices along the axis."""
        return self.inner * self.slices


def parse(text: str) -> tuple[Axis, ...]:
    """Return the axes in `text`. One of them may have -1 devices: all the others.

    Raises:
        UserError: the text is no list of axes.
    """
    axes = []
    for part in text.replace(" ", "").split(","):
        found = _AXIS.fullmatch(part)
        if found is None or "0" in found.groups():
            raise UserError(
                f"--mesh {text}: {part!r} is no axis; write name=devices, e.g. data=2,model=2, or -1 for the rest"
            )
        name, slices, inner = found.groups()
        axes.append(Axis(name, int(inner), int(slices or 1)))
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise UserError(f"--mesh {text} names an axis twice; give each axis a name of its own")
    if sum(axis.inner == -1 for axis in axes) > 1:
        raise UserError(f"--mesh {text}: only one axis can have the rest of the devices (-1); give the others a number")
    return tuple(axes)


def places(axes: Sequence[Axis]) -> int | None:
    """Return the number of devices of the axes; None where it depends on how many there are."""
    return None if any(axis.inner == -1 for axis in axes) else math.prod(axis.size for axis in axes)


def fit(axes: Sequence[Axis], devices: int) -> tuple[Axis, ...]:
    """Return the axes with -1 replaced, for this many devices.

    Raises:
        UserError: the axes need another number of devices.
    """
    given = math.prod(axis.slices if axis.inner == -1 else axis.size for axis in axes)
    rest = devices // given if any(axis.inner == -1 for axis in axes) and devices % given == 0 else 1
    fitted = tuple(replace(axis, inner=rest) if axis.inner == -1 else axis for axis in axes)
    if places(fitted) != devices:
        raise UserError(
            f"--mesh {text_of(axes)} needs {'a multiple of ' if places(axes) is None else ''}{given} devices, "
            f"and there are {devices}; on the CPU CPU_NUM_DEVICES says how many"
        )
    return fitted


def make(axes: Sequence[Axis], device: str) -> Any:
    """Return the runtime's mesh of `axes`, without -1, on the kind of device that the runtime calls `device`.

    On a TPU its devices are ordered by how they are connected.

    Raises:
        UserError: the axes do not fit the TPU's slices, or how its chips are connected.
    """
    from torch_xla import runtime
    from torch_xla.distributed import spmd

    names = tuple(axis.name for axis in axes)
    if device == "TPU":
        try:
            return spmd.HybridMesh(
                ici_mesh_shape=tuple(axis.inner for axis in axes),
                dcn_mesh_shape=tuple(axis.slices for axis in axes),
                axis_names=names,
            )
        except (ValueError, NotImplementedError) as error:
            raise UserError(
                f"--mesh {text_of(axes)} does not fit this TPU: {error}; several slices are written as data=2x4, two "
                "of them with four chips each"
            ) from error
    devices = list(range(runtime.global_runtime_device_count()))
    return spmd.Mesh(devices, tuple(axis.size for axis in axes), names)


def text_of(axes: Sequence[Axis]) -> str:
    """Return the axes in the form that `--mesh` takes."""
    return ",".join(f"{axis.name}={f'{axis.slices}x' * (axis.slices > 1)}{axis.inner}" for axis in axes)
