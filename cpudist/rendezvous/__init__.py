"""How the ranks of a job find each other within a time limit: a store that all of them reach.

- `connecting.py`: `connect` returns that store to each rank.
- `mpi.py`: MPI, used only to tell the ranks where the store is.
- `gather.py`: `all_gather` of texts through a store.

Its caller says how the ranks find each other; it does not depend on the launcher. It must not import backends or jobs.
"""

from cpudist.rendezvous.connecting import Rendezvous, connect
from cpudist.rendezvous.gather import all_gather

__all__ = ["Rendezvous", "all_gather", "connect"]
