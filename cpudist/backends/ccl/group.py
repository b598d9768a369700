"""Creates one process group: the ranks meet through the group's store, then its transport is made."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import torch
from torch.distributed import PrefixStore

from cpudist.backends.ccl.library import load
from cpudist.rendezvous import exchange, node_identity


def create_group(options: Any) -> Any:
    """Create the c10d backend that torch asks for with a ``_DistributedBackendOptions``.

    Raises:
        UserError: when the backend cannot be compiled or loaded on this rank.
        StartupTimeout: when ranks of the group are missing after its timeout; it names them.
    """
    module = load()
    timeout = options.timeout.total_seconds()
    rank, size = options.group_rank, options.group_size
    members = [
        json.loads(text)
        for text in exchange(
            PrefixStore("members", options.store),
            rank,
            size,
            "member",
            json.dumps({"node": node_identity(), "cpus": sorted(os.sched_getaffinity(0))}),
            timeout,
            what=f"creating the ccl group {options.group_id!r}",
            meanwhile=module.progress,  # a peer may need what is under way before it can come here
        )
    ]
    _start_thread(module, members, rank)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(member["node"] for member in members))}
    nodes = [numbers[member["node"]] for member in members]
    return module.create_group(PrefixStore("transport", options.store), rank, nodes, timeout, options.group_id)


def _start_thread(module: Any, members: list[dict[str, Any]], rank: int) -> None:
    """Start the thread for progress, which polls where this rank has a core left over for it.

    The first group decides: it is the whole job, while a subgroup does not see who else uses the node's cores.
    """
    module.start_thread(polls=cores_to_spare(members, rank, torch.get_num_threads()) >= 1)


def cores_to_spare(members: list[dict[str, Any]], rank: int, threads: int) -> int:
    """Cores of this rank that its ``threads`` computing threads leave over.

    ``members`` gives each rank's node and CPUs. Ranks that share CPUs (no pinning) share them evenly.
    """
    own = members[rank]
    users = Counter(cpu for one in members if one["node"] == own["node"] for cpu in one["cpus"])
    cores = sum(1 / users[cpu] for cpu in own["cpus"])
    return int(cores + 1e-9) - threads
