"""Train from a notebook, or from plain Python: start a job, show its output, and return its result or its error.

- `entry.py`: `notebook_launcher`, with restarts; `settings.py`: its arguments, checked.
- `pickling.py`: pickles the notebook's functions and classes, with all that they use, for other processes; compares the
  calls in the cells of several nodes.
- `ranks.py`: starts this node's ranks, shows their output and waits until all have ended.
- `nodes.py`: the store for the rendezvous of the ranks and the failure reports of the nodes' notebooks.
- `worker.py`: the program of a rank; `result.py`: its result or failure; `figures.py`: its matplotlib figures.
- `cell.py`: the names of cells, and the table of the ranks and their loss in a cell while they run.

It must not import MPI, transformers, Trainer's patches or command lines.
"""

from importlib.util import find_spec

from cpudist.errors import UserError

if find_spec("cloudpickle") is None:
    raise UserError("notebook_launcher needs cloudpickle; install it with: pip install 'cpudist[notebook]'")

from cpudist.notebook.entry import notebook_launcher
from cpudist.notebook.result import RankFailed

__all__ = ["RankFailed", "notebook_launcher"]
