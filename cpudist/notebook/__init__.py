"""Starting a job from a notebook, or from plain Python, and having its output, its errors and its result there.

- `launcher.py`: `notebook_launcher`, with restarts; `settings.py`: what it was asked for, checked.
- `carry.py`: functions and classes of the notebook, and what they use, on their way to other processes.
- `attempt.py`: this node's ranks, from their start until none is left; `relay.py`: what they print.
- `nodes.py`: the store in which the ranks meet, and the nodes' notebooks tell each other of failures.
- `worker.py`: what each rank runs; `outcome.py`: what it hands back.

It must not know MPI, transformers, Trainer's patches or command lines.
"""

from cpudist.notebook.launcher import notebook_launcher
from cpudist.notebook.outcome import RankFailed

__all__ = ["RankFailed", "notebook_launcher"]
