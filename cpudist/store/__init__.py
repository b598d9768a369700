"""The job's own key-value store: a small server in a child process of rank 0, and its clients.

- `values.py`, `server.py`: keys, values and waiting; `serve.py`, `process.py`: the process that serves them.
- `protocol.py`: the messages; `client.py`: a connection; `torch_store.py`: a connection as torch's `Store`.

Clients and server prove to each other that they have the job's token. It must not import rendezvous, backends or jobs.
"""

from cpudist.store.client import Address, Connection, StoreLost, keepalive_timeout

__all__ = ["Address", "Connection", "StoreLost", "keepalive_timeout"]
