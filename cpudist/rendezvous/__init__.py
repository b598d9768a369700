"""How the ranks of a job find each other, within a time limit: in one store that all of them reach.

- `values.py`, `server.py`, `serve.py`, `process.py`: the store, and the process of rank 0's that serves it.
- `wire.py`: what is said to it; `connection.py`, `store.py`: who says it, in Python and for torch.
- `meeting.py`: `meet` gives each rank that store.
- `mpi.py`: MPI, for the one thing that it is needed for: to tell where the store is.
- `exchange.py`: every rank tells every other one something, through a store.

It is told how the ranks meet, and does not ask who started them. It must not know backends or jobs.
"""

from cpudist.rendezvous.connection import Address, Connection, StoreLost
from cpudist.rendezvous.exchange import exchange
from cpudist.rendezvous.meeting import Meeting, meet, silence
from cpudist.rendezvous.process import StoreProcess

__all__ = ["Address", "Connection", "Meeting", "StoreLost", "StoreProcess", "exchange", "meet", "silence"]
