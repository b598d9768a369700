"""The launchers of MPI libraries: one file each, with what it is called with to start a job's ranks.

`find.py` looks for one. Pinning is left to the ranks (`cpudist.pinning`), so each launcher's own is switched off.
"""

from cpudist.launch.launchers.base import Launcher, Start
from cpudist.launch.launchers.find import MPIS, find_launcher

__all__ = ["MPIS", "Launcher", "Start", "find_launcher"]
