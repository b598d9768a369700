"""Connect the ranks of a job within a time limit, through a store that all of them reach.

Its caller says how the ranks find each other; it does not depend on the launcher. It must not import backends or jobs.
"""

from cpudist.rendezvous.connecting import Rendezvous, connect
from cpudist.rendezvous.gather import StoreGroup, awaited

__all__ = ["Rendezvous", "StoreGroup", "awaited", "connect"]
