"""Connect the ranks of a job within a time limit, through a store that all of them reach.

The caller says by which method ranks find each other. This package must not import backends or jobs.
"""

from cpudist.rendezvous.connecting import Rendezvous, connect
from cpudist.rendezvous.gather import StoreGroup, awaited

__all__ = ["Rendezvous", "StoreGroup", "awaited", "connect"]
