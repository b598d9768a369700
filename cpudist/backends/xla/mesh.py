"""The axes of `--mesh`.

data=4              four devices, each with a quarter of the batch
data=2,model=-1     two halves of the batch; all other devices divide the parameters
"""

import math
import re
from collections.abc import Mapping

from cpudist.errors import UserError

BATCH_AXES = ("data", "fsdp")  # The axes that divide a batch. All axes but data divide parameters.

_AXIS = re.compile(r"([A-Za-z_]\w*)=(-1|[1-9]\d*)")


def parse(text: str) -> dict[str, int]:
    """Return the number of devices along each axis in `text`, or raise `UserError`. One number may be -1, the rest."""
    axes: dict[str, int] = {}
    for part in text.replace(" ", "").split(","):
        found = _AXIS.fullmatch(part)
        if found is None:
            raise UserError(
                f"--mesh {text}: {part!r} is no axis; write name=devices, e.g. data=2,model=2, or -1 for the rest"
            )
        if found[1] in axes:
            raise UserError(f"--mesh {text} names an axis twice; give each axis a name of its own")
        axes[found[1]] = int(found[2])
    if list(axes.values()).count(-1) > 1:
        raise UserError(f"--mesh {text}: only one axis can have the rest of the devices (-1); give the others a number")
    return axes


def places(axes: Mapping[str, int]) -> int | None:
    """Return the number of devices that the axes need; None if an axis is -1."""
    return None if -1 in axes.values() else math.prod(axes.values())


def fit(axes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Return the axes with -1 replaced by a number, or raise `UserError` if they need more or fewer `devices`."""
    given = math.prod(size for size in axes.values() if size != -1)
    fitted = {name: devices // given if size == -1 else size for name, size in axes.items()}
    if places(fitted) != devices:
        raise UserError(
            f"--mesh {text_of(axes)} needs {'a multiple of ' if places(axes) is None else ''}{given} devices, "
            f"and there are {devices}; on the CPU CPU_NUM_DEVICES says how many"
        )
    return fitted


def text_of(axes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes.items())
