"""The workers of a TPU pod, each started alike: the runtime knows how many there are, and which one this is.

Source: PyTorch/XLA 2.8, docs/source/learn/pjrt.md ("TPU pods") and torch_xla/runtime.py.
"""

from __future__ import annotations

import os

from torch_xla import runtime

from cpudist.backends.xla.spmd.sharding import become_one_program
from cpudist.changes import Changes

_PORT = "12355"  # the runtime's own default


def place() -> dict[str, str]:
    """This worker's place as torchrun would set it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; none if it is alone.

    Blocks until all workers are there, as the runtime's start does.
    """
    changes = Changes()
    try:
        with changes.environment():
            os.environ["PJRT_DEVICE"] = "TPU"
            become_one_program()  # a process of a mesh has all chips of its host, and finds the first host by them
            if runtime.process_count() == 1:
                return {}
            return {
                "RANK": str(runtime.process_index()),
                "WORLD_SIZE": str(runtime.process_count()),
                "MASTER_ADDR": runtime.get_master_ip(),
                "MASTER_PORT": os.environ.get("MASTER_PORT", _PORT),
            }
    finally:
        changes.undo()
