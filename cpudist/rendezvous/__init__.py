"""Connect the ranks of a job within a time limit, through a store that all of them reach.

- `connecting.py`: `connect` returns the store on each rank.
- `mpi.py`: MPI, used only to send the store's address to the ranks.
- `gather.py`: `all_gather` of texts through a store, and the names of ranks that a wait is for.

Its caller says how the ranks find each other; it does not depend on the launcher. It must not import backends or jobs.
"""

from cpudist.rendezvous.connecting import Rendezvous, connect
from cpudist.rendezvous.gather import all_gather, awaited

__all__ = ["Rendezvous", "all_gather", "awaited", "connect"]
