"""Creates one process group: the ranks meet through the group's store, then its transport is made."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch.distributed import PrefixStore

from cpudist.backends.ccl.extension import load
from cpudist.errors import UserError
from cpudist.machine.cpus import allowed_cpus, cores_to_spare, cpu_quota
from cpudist.machine.description import own_numa_node
from cpudist.machine.identity import node_identity
from cpudist.pinning import data_cores
from cpudist.rendezvous import exchange


def create_group(options: Any) -> Any:
    """Create the c10d backend that torch asks for with a ``_DistributedBackendOptions``.

    Raises:
        UserError: when the backend cannot be compiled or loaded on this rank.
        StartupTimeout: when ranks of the group are missing after its timeout; it names them.
    """
    module = load()
    timeout = options.timeout.total_seconds()
    rank, size = options.group_rank, options.group_size
    own = {
        "node": node_identity(),
        "numa_node": own_numa_node(),
        "cpus": allowed_cpus(),
        "transport": os.environ.get("CPUDIST_TRANSPORT", ""),
    }
    members = [
        json.loads(text)
        for text in exchange(
            PrefixStore("members", options.store),
            rank,
            size,
            "member",
            json.dumps(own),
            timeout,
            what=f"creating the ccl group {options.group_id!r}",
            meanwhile=module.progress,  # a peer may need what is under way before it can come here
        )
    ]
    shared_memory = _may_share_memory({member["transport"] for member in members})
    neighbours = [member["cpus"] for member in members if member["node"] == own["node"]]
    spare = cores_to_spare(allowed_cpus(), neighbours, torch.get_num_threads() + data_cores(), cpu_quota())
    # The default group is the whole job; a subgroup does not see who else uses the node's cores.
    module.start_thread(polls=spare >= 1 and not options.global_ranks_in_group)
    numbers = {node: number for number, node in enumerate(dict.fromkeys(member["node"] for member in members))}
    nodes = [numbers[member["node"]] for member in members]
    numa_nodes = [member["numa_node"] for member in members]
    if None in numa_nodes:
        numa_nodes = []
    store = PrefixStore("transport", options.store)
    return module.create_group(store, rank, nodes, numa_nodes, timeout, options.group_id, shared_memory)


def _may_share_memory(chosen: set[str]) -> bool:
    """Whether our own transport may be used inside a machine, after all ranks' CPUDIST_TRANSPORT."""
    if unknown := chosen - {"", "oneccl"}:
        raise UserError(f"CPUDIST_TRANSPORT={unknown.pop()} is not known; set it to oneccl, or not at all")
    if len(chosen) > 1:
        raise UserError("CPUDIST_TRANSPORT is oneccl on some ranks only; set it on all of them, or on none")
    return chosen == {""}
