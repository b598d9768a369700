"""The job's own key-value store: a small server in a child process of rank 0, and its clients.

Clients and server authenticate by the job's token. This package must not import rendezvous, backends or jobs.
"""

from cpudist.store.client import Address, Connection, StoreLost, keepalive_timeout

__all__ = ["Address", "Connection", "StoreLost", "keepalive_timeout"]
