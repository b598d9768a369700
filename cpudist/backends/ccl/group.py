"""Creates one process group: the ranks meet through the group's store, then oneCCL makes its communicator."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.distributed import PrefixStore

from cpudist.backends.ccl.extension import load
from cpudist.machine.cpus import allowed_cpus, cores_to_spare
from cpudist.machine.identity import node_identity
from cpudist.rendezvous import exchange

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
    own = {"node": node_identity(), "cpus": allowed_cpus()}
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
        )
    ]
    # The default group is the whole job; a subgroup does not see who else uses the node's cores.
    if not options.global_ranks_in_group:
        neighbours = [member["cpus"] for member in members if member["node"] == own["node"]]
        if cores_to_spare(allowed_cpus(), neighbours, torch.get_num_threads()) >= 1:
            module.start_thread()
    one_node = len({member["node"] for member in members}) == 1
    return module.create_group(
        PrefixStore("oneccl", options.store),
        rank,
        size,
        timeout,
        options.group_id,
        _UNDER_WAY_ON_ONE_NODE if one_node else _UNDER_WAY_ACROSS_NODES,
    )
