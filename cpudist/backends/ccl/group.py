"""Creates one process group: the ranks meet through the group's store, then its transport is made."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import torch
from torch.distributed import PrefixStore

from cpudist.backends.ccl.library import load
from cpudist.errors import UserError
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
            json.dumps(
                {
                    "node": node_identity(),
                    "cpus": sorted(os.sched_getaffinity(0)),
                    "transport": os.environ.get("CPUDIST_TRANSPORT", ""),
                }
            ),
            timeout,
            what=f"creating the ccl group {options.group_id!r}",
            meanwhile=module.progress,  # a peer may need what is under way before it can come here
        )
    ]
    _start_thread(module, members, rank)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(member["node"] for member in members))}
    nodes = [numbers[member["node"]] for member in members]
    store = PrefixStore("transport", options.store)
    return module.create_group(store, rank, nodes, timeout, options.group_id, _may_share_memory(members))


def _may_share_memory(members: list[dict[str, Any]]) -> bool:
    """Whether our own transport may be used inside a machine; CPUDIST_TRANSPORT=oneccl switches it off."""
    chosen = {member["transport"] for member in members}
    if unknown := chosen - {"", "oneccl"}:
        raise UserError(f"CPUDIST_TRANSPORT={unknown.pop()} is not known; set it to oneccl, or not at all")
    if len(chosen) > 1:
        raise UserError("CPUDIST_TRANSPORT is oneccl on some ranks only; set it on all of them, or on none")
    return not chosen - {""}


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
