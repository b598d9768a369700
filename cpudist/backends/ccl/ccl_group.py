"""Creates one process group: its ranks exchange hosts and settings through its store, then create a transport."""

import json
import os
from collections import Counter
from typing import Any

import torch
from torch._C._distributed_c10d import Backend
from torch.distributed import PrefixStore

from cpudist.backends.ccl import extension
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.rendezvous import StoreGroup, awaited
from cpudist.topology.identity import node_identity
from cpudist.topology.machine import allowed_cpus, cores_to_spare, cpu_quota
from cpudist.waiting import bounded

_CONNECT_SECONDS = 60.0  # Time limit for creating the transport after all ranks have exchanged settings.


class WireOptions(Backend.Options):
    """``pg_options`` of a group that sends large float32 sums and averages as "bf16", or as "int8" in blocks of 256."""

    def __init__(self, wire: str) -> None:
        super().__init__("ccl")
        self.wire = wire


def create_group(options: Any, backend_options: Any = None) -> Any:
    """Create a c10d backend. All ranks of the group call it.

    Args:
        backend_options: the user's ``pg_options``: None, `Backend.Options` or `WireOptions`. torch sets their timeout.

    Raises:
        UserError: the backend cannot be compiled, loaded or started on this rank, `backend_options` belong to another
            backend, or a setting is invalid or differs between ranks.
        StartupTimeout: ranks of the group are missing after the timeout; the message names them.
    """
    if type(backend_options) not in (type(None), Backend.Options, WireOptions):
        raise UserError(f"ccl takes no pg_options of type {type(backend_options).__name__}; leave pg_options out")
    module = extension.load()
    timeout = options.timeout.total_seconds()
    rank, size = options.group_rank, options.group_size
    # An earlier group of this name may have left its keys in the same store, so each group uses a new prefix.
    generation = options.store.add(f"generation/{rank}", 1)
    store = PrefixStore(str(generation), options.store)
    wire = getattr(backend_options, "wire", "float32")
    own = {
        "wire": wire,
        "node": node_identity(),
        "cpus": allowed_cpus(),
        "transport": extension.requested_transport(),
        "sums": module.sums or os.environ.get("CCL_ALLREDUCE"),
    }
    group = StoreGroup(PrefixStore("members", store), rank, size, timeout, options.global_ranks_in_group)
    what = f"creating the ccl group {options.group_id!r}"
    # A peer may still be in an earlier call with this rank, which completes only if this rank makes progress.
    members = list(map(json.loads, group.all_gather("member", json.dumps(own), what, meanwhile=module.progress)))
    if len({member["wire"] for member in members}) > 1:
        raise UserError("ranks ask for different formats of compressed gradients; give the same on all of them")
    shared_memory, mpi = chosen_transports({member["transport"] for member in members})
    neighbours = [member["cpus"] for member in members if member["node"] == own["node"]]
    spare = cores_to_spare(allowed_cpus(), neighbours, torch.get_num_threads(), cpu_quota())
    # `spare` considers only this group's ranks. Only the default group has all ranks of the job on this node.
    whole_job = not options.global_ranks_in_group
    module.start_thread(polls=spare >= 1 and whole_job)
    if whole_job:
        module.lend_computing_threads(cores=spare + torch.get_num_threads())
    numbers = {node: number for number, node in enumerate(dict.fromkeys(member["node"] for member in members))}
    nodes = [numbers[member["node"]] for member in members]
    counts = Counter(nodes).values()
    if whole_job and shared_memory and rank == 0 and min(counts) < max(counts):
        why = f"warning: large allreduces bypass shared memory: hosts have {min(counts)} to {max(counts)} ranks"
        say(f"{why}; start as many on each of them")
    if mpi:
        # Ranks of one machine that mpirun has not started communicate through shared memory only.
        if len(numbers) > 1 or not shared_memory or extension.mpi_world():
            extension.start_mpi()
    else:
        sums = sorted({member["sums"] for member in members if member["sums"]})
        if len(sums) > 1:
            raise UserError(f"CCL_ALLREDUCE differs between ranks ({', '.join(sums)}); set the same on all of them")
        extension.start(sums[0] if sums else None, len(numbers) if whole_job else 1)
    # Creating a communicator cannot be interrupted. All ranks have exchanged settings before, so it takes only seconds.
    what, limit = f"connecting the ccl group {options.group_id!r}", min(timeout, _CONNECT_SECONDS)
    with bounded(what, limit, rank == 0 and not whole_job, lambda: awaited(options.global_ranks_in_group)):
        return module.create_group(
            PrefixStore("transport", store), rank, nodes, timeout, options.group_id, shared_memory, mpi, wire
        )


def chosen_transports(chosen: set[str]) -> tuple[bool, bool]:
    """Return whether shared memory may be used inside a machine, and whether MPI replaces oneCCL.

    `chosen` has the values of CPUDIST_TRANSPORT on all ranks: "mpi" selects MPI and shared memory; "oneccl" and
    "mpi-alone" exclude shared memory. UserError if a value is invalid, or ranks have different values.
    """
    if unknown := chosen - {"", "oneccl", "mpi", "mpi-alone"}:
        raise UserError(f"CPUDIST_TRANSPORT={unknown.pop()} is not known; set it to mpi or oneccl, or not at all")
    if len(chosen) > 1:
        named = max(chosen)
        raise UserError(f"CPUDIST_TRANSPORT is {named} on some ranks only; set it on all of them, or on none")
    value = chosen.pop()
    return value in ("", "mpi"), value.startswith("mpi")
