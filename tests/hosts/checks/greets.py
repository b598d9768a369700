"""Run by each rank: says who it is once all ranks have met, and does what its arguments say.

    greets.py FOLDER [WHAT RANK]      WHAT: hang, wait (hang in the first attempt only), once (killed in it)

Each rank leaves a file in FOLDER for each attempt, with its host.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, what, who = Path(sys.argv[1]), *(sys.argv[2:] or ("nothing", "-1"))
rank = dist.get_rank()
attempt = os.environ.get("CPUDIST_RESTART_COUNT", "0")
assert (float(os.environ.get("CPUDIST_EARLIER_SECONDS", "0")) > 0) == (attempt != "0")
total = torch.ones(1)
dist.all_reduce(total)
(folder / f"{attempt}-{rank}").write_text(socket.gethostname())
print(f"rank {rank} of {int(total)} on {socket.gethostname()}", flush=True)
dist.barrier()  # no rank fails before all have left their file
if rank == int(who) and what == "once" and attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
if what == "hang" or (what == "wait" and attempt == "0"):
    (folder / "waiting").touch()
    time.sleep(300)
dist.all_reduce(total)
