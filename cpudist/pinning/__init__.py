"""Binds this rank to its part of the node's plan, before torch starts threads or later, and checks it in training.

- `options.py`: what the user has set about threads and data loading.
- `share.py`: the part of the node that belongs to this rank: what its launcher has pinned, or its part of the plan.
- `preload.py`: a faster allocator, for which the process starts once more.
- `apply.py`: decides, and changes this process; `threads.py`: the masks of its threads, and where its pages are placed.
- `observe.py`: what the process really got.

It must not know torch, MPI or jobs.
"""

from cpudist.pinning.apply import Pinning, decide, pin
from cpudist.pinning.threads import data_cores

__all__ = ["Pinning", "data_cores", "decide", "pin"]
