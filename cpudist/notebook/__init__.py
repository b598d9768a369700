"""Train from a notebook, or from plain Python: start a job, show its output, and return its result or its error.

- `entry.py`: `notebook_launcher`, with restarts; `settings.py`: its arguments, checked.
- `carry.py`: pickles functions and classes of the notebook, and what they use, for other processes; tells whether the
  cells of several nodes make the same call.
- `ranks.py`: this node's ranks, from their start until none is left, and what they print.
- `nodes.py`: the store in which the ranks find each other and the nodes' notebooks report failures.
- `worker.py`: what each rank runs; `result.py`: what it returns; `figures.py`: what it draws.
- `live_view.py`: the table of the ranks and the loss in the cell while they run.

It must not import MPI, transformers, Trainer's patches or command lines.
"""

from importlib.util import find_spec

from cpudist.errors import UserError

if find_spec("cloudpickle") is None:
    raise UserError("notebook_launcher needs cloudpickle; install it with: pip install 'cpudist[notebook]'")

from cpudist.notebook.entry import notebook_launcher
from cpudist.notebook.result import RankFailed

__all__ = ["RankFailed", "notebook_launcher"]
