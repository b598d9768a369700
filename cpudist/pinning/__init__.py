"""This rank follows the plan for its node: before torch starts threads, or once it runs; and checked once it trains.

- `launcher.py`: the process that started the ranks, and what it has pinned already.
- `wishes.py`: what a person has set; `share.py`: the part of the node that is this rank's; pure functions.
- `preload.py`: a faster allocator, for which the process starts once more.
- `apply.py`: decides and changes this process; `threads.py`: the masks of its threads.
- `observe.py`: what it really got.

It must not know torch, MPI or jobs.
"""

from cpudist.pinning.apply import Pinning, decide, pin
from cpudist.pinning.threads import data_cores

__all__ = ["Pinning", "data_cores", "decide", "pin"]
