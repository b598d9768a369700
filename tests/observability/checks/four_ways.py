"""Four ranks that hang in four ways, until the file of the first argument is there.

0 waits in a collective, 1 sleeps in Python, 2 is blocked in C with the interpreter's lock, 3 has been stopped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from cpudist.waiting import poll

over = Path(sys.argv[1])
dist.all_reduce(torch.ones(1))
rank = dist.get_rank()
over.with_name(f"there-{rank}").touch()
if rank == 0:
    dist.all_reduce(torch.ones(1 << 20))
elif rank == 1:

    def wait_for_the_end() -> None:
        poll(over.exists, 100)

    wait_for_the_end()
    os.kill(os.getpid(), signal.SIGKILL)  # the launcher ends the others
elif rank == 2:
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    mutex = ctypes.create_string_buffer(64)
    lock(mutex)
    lock(mutex)
else:
    os.kill(os.getpid(), signal.SIGSTOP)
