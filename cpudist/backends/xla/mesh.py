"""The axes of `--mesh`.

data=4              four devices, each with a quarter of the batch
data=2,model=-1     two halves of the batch; all other devices divide the parameters
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpudist.errors import UserError

# The axes that divide a batch. All axes but data divide parameters.
BATCH_AXES = ("data", "fsdp")

_AXIS = re.compile(r"([A-Za-z_]\w*)=(-1|[1-9]\d*)")


@dataclass(frozen=True)
class Axis:
    """One axis of a mesh: its name, and the number of devices along it, or -1 for all others."""

    name: str
    size: int


def parse(text: str) -> tuple[Axis, ...]:
    """Return the axes in `text`. One of them may have -1 devices: all the others.

    Raises:
        UserError: the text is no list of axes.
    """
    axes = []
    for part in text.replace(" ", "").split(","):
        found = _AXIS.fullmatch(part)
        if found is None:
            raise UserError(
                f"--mesh {text}: {part!r} is no axis; write name=devices, e.g. data=2,model=2, or -1 for the rest"
            )
        axes.append(Axis(found[1], int(found[2])))
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise UserError(f"--mesh {text} names an axis twice; give each axis a name of its own")
    if sum(axis.size == -1 for axis in axes) > 1:
        raise UserError(f"--mesh {text}: only one axis can have the rest of the devices (-1); give the others a number")
    return tuple(axes)


def places(axes: Sequence[Axis]) -> int | None:
    """Return the number of devices of the axes; None where it depends on how many there are."""
    return None if any(axis.size == -1 for axis in axes) else math.prod(axis.size for axis in axes)


def fit(axes: Sequence[Axis], devices: int) -> tuple[Axis, ...]:
    """Return the axes with -1 replaced, for this many devices.

    Raises:
        UserError: the axes need another number of devices.
    """
    given = math.prod(axis.size for axis in axes if axis.size != -1)
    fitted = tuple(replace(axis, size=devices // given) if axis.size == -1 else axis for axis in axes)
    if places(fitted) != devices:
        raise UserError(
            f"--mesh {text_of(axes)} needs {'a multiple of ' if places(axes) is None else ''}{given} devices, "
            f"and there are {devices}; on the CPU CPU_NUM_DEVICES says how many"
        )
    return fitted


def text_of(axes: Sequence[Axis]) -> str:
    """Return the axes in the form that `--mesh` takes."""
    return ",".join(f"{axis.name}={axis.size}" for axis in axes)
