"""Creates one process group: the ranks meet through the group's store, then oneCCL makes its communicator."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import torch
from torch.distributed import PrefixStore

from cpudist.backends.ccl.library import load
from cpudist.rendezvous import exchange, node_identity

# oneCCL calls under way at once in a group, such as the pieces of a large tensor. Inside one machine one at a time is
# best, it stays in the caches (96 MB: 8.7 ms one at a time, 12.5 four, 33 all); across hosts pieces must overlap to
# fill the wire.
_UNDER_WAY_ON_ONE_NODE = 1
_UNDER_WAY_ACROSS_NODES = 1_000_000


def create_group(options: Any) -> Any:
    """Create the c10d backend that torch asks for with a ``_DistributedBackendOptions``.

    Raises:
        UserError: when the backend cannot be compiled or loaded on this rank.
        StartupTimeout: when ranks of the group are missing after its timeout; it names them.
    """
    module = load()
    module.drain()  # a peer may need what is under way before it can come here, and nothing moves while we meet
    timeout = options.timeout.total_seconds()
    rank, size = options.group_rank, options.group_size
    seats = [
        json.loads(text)
        for text in exchange(
            PrefixStore("seats", options.store),
            rank,
            size,
            "seat",
            json.dumps({"node": node_identity(), "cpus": sorted(os.sched_getaffinity(0))}),
            timeout,
            what=f"creating the ccl group {options.group_id!r}",
        )
    ]
    _decide_on_thread(module, seats, rank)
    one_node = len({seat["node"] for seat in seats}) == 1
    return module.create_group(
        PrefixStore("oneccl", options.store),
        rank,
        size,
        timeout,
        options.group_id,
        _UNDER_WAY_ON_ONE_NODE if one_node else _UNDER_WAY_ACROSS_NODES,
    )


_decided = False


def _decide_on_thread(module: Any, seats: list[dict[str, Any]], rank: int) -> None:
    """Start the thread for progress where this rank has a core left over for it.

    The first group decides: it is the whole job, while a subgroup does not see who else uses the node's cores.
    """
    global _decided
    if not _decided and cores_to_spare(seats, rank, torch.get_num_threads()) >= 1:
        module.start_thread()
    _decided = True


def cores_to_spare(seats: list[dict[str, Any]], rank: int, threads: int) -> int:
    """Cores of this rank that its ``threads`` computing threads leave over.

    ``seats`` gives each rank's node and CPUs. Ranks that share CPUs (no pinning) share them evenly.
    """
    own = seats[rank]
    users = Counter(cpu for seat in seats if seat["node"] == own["node"] for cpu in seat["cpus"])
    cores = sum(1 / users[cpu] for cpu in own["cpus"])
    return int(cores + 1e-9) - threads
