"""The job's ranks: where each one is, and what it was given of its node."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cpudist.console import say
from cpudist.job.failure import is_interactive
from cpudist.machine.cpus import allowed_cpus
from cpudist.machine.identity import node_identity
from cpudist.world import Member, World, assign_nodes, elsewhere

if TYPE_CHECKING:
    from cpudist.environments import Environment


def see_who_is_where(
    environment: Environment, ask_everyone: Callable[[str, str], list[str]]
) -> tuple[World, list[Member]]:
    """Tell the others about this rank; returns its place among them, and all of them in rank order.

    Args:
        environment: what started this rank.
        ask_everyone: tells all ranks this one's value under a key, and returns the values of all.
    """
    import torch

    placement = environment.placement()
    own = Member(
        node_identity(),
        socket.gethostname(),
        placement,
        tuple(allowed_cpus()),
        torch.get_num_threads(),
        is_interactive(),
    )
    members = [Member.from_json(text) for text in ask_everyone("member", own.to_json())]
    world = assign_nodes(members, environment.name)[placement.rank]
    if world.rank == 0 and (warning := elsewhere(members, world, environment.nodes_asked_for)):
        say(f"warning: {warning}")
    return world, members


def pinning_of(members: Sequence[Member]) -> list[dict[str, Any]]:
    """What the run record says of each rank's cores and threads."""
    return [
        {"rank": rank, "host": member.host, "cpus": list(member.cpus), "omp_threads": member.threads}
        for rank, member in enumerate(members)
    ]
