"""A rank that hears of a failed job when its host is cut off: it leaves, and sees to the launcher's processes.

    python link_lost.py FOLDER

Says in FOLDER that it is there, and goes when the file "cut" is; both hosts see the folder, as on a network disk.
"""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

from mpi4py import MPI

from cpudist.job.abort import end_launcher_after
from cpudist.waiting import poll

folder = Path(sys.argv[1])
MPI.COMM_WORLD.Barrier()
(folder / f"there-{uuid.uuid4()}").touch()
assert poll((folder / "cut").exists, 60)
end_launcher_after(3)
os._exit(1)
