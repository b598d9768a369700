"""Train from a notebook, or from plain Python: start a job, show its output, and return its result or its error.

This package must not import MPI, transformers, Trainer's patches or command lines.
"""

from importlib.util import find_spec

from cpudist.errors import UserError

if find_spec("cloudpickle") is None:
    raise UserError("notebook_launcher needs cloudpickle; install it with: pip install 'cpudist[notebook]'")

from cpudist.notebook.entry import notebook_launcher
from cpudist.notebook.result import RankFailed

__all__ = ["RankFailed", "notebook_launcher"]
