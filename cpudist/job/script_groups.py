"""Let a script that calls `init_process_group` itself join the job, which has a process group already."""

from __future__ import annotations

import functools
import itertools
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse

import torch

from cpudist import backends
from cpudist.console import option, say
from cpudist.errors import UserError
from cpudist.patching.patch import Patch
from cpudist.waiting import check_timeout
from cpudist.world import World

if TYPE_CHECKING:
    from cpudist.job.job import Job


def check_backend(job: Job, name: str | None, *, joins: bool = True) -> str:
    """Return the job's backend for a script that asks for the backend `name` (None: any).

    A backend that the user has named overrules the script's. If "auto" has chosen the job's, a script that asks for
    gloo joins if `joins`, and one that asks for nccl joins if there is no GPU; another request is a `UserError`.
    """
    ours = job.world.backend
    if name in (None, ours):
        return ours
    if job.options.backend != "auto":
        taken = f"; {job.options.written('backend')} comes first"
    elif name == "gloo" and joins:  # gloo is torch's only backend for CPU tensors unless another one is installed
        taken = f" and joins the job on {ours}; {option('backend', 'gloo')} puts it on gloo"
    elif name == "nccl" and job.world.device_type == "cpu" and not torch.cuda.is_available():
        taken = f", which is for GPUs, and joins the job on {ours}"
    else:
        theirs = f", or {option('backend', name)} for the script's" if name in backends.names() else ""
        remedy = f"give {option('backend', ours)} to stay on it{theirs}"
        raise UserError(f"the script asks for the backend {name}, but the job runs on {ours}; {remedy}")
    if job.world.rank == 0 and name not in job.overruled:
        say(f"the script asks for the backend {name}{taken}")
    job.overruled.add(name)
    return ours


def _joining(original: Any, job: Job) -> Any:
    """Return an `init_process_group` that joins the job's process group.

    torch rejects a second call, as it does without cpudist. A call after `destroy_process_group` makes a new group with
    the job's backend. Arguments that contradict the job raise `UserError`.
    """
    import torch.distributed as dist

    own_name = dist.get_backend()  # torch's name of the job's backend, such as gloo
    numbers = itertools.count(1)
    joined = remaking = False

    @functools.wraps(original)
    def init_process_group(
        backend: str | None = None,
        init_method: str | None = None,
        timeout: timedelta | None = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        nonlocal joined, remaking
        if remaking or (joined and dist.is_initialized()):  # the backend's own call, or a second call of the script
            original(backend, init_method, timeout, world_size, rank, store, *args, **kwargs)
            return
        asked = _for_device(backend, job.world.device_type)
        if asked != own_name:
            check_backend(job, asked)
        _check_world(job.world, init_method, world_size, rank, from_variables=store is None)
        if timeout is not None:
            job.set_timeout(check_timeout(timeout.total_seconds()))
        if not dist.is_initialized():
            remaking = True
            try:
                job.restart_backend(dist.PrefixStore(f"again/{next(numbers)}", job.store))
            finally:
                remaking = False
        joined = True

    return init_process_group


PATCHES = (
    Patch(
        "torch.distributed:init_process_group",
        "a script that makes the process group itself joins the job's",
        _joining,
        "backend, init_method, timeout, world_size, rank, store, ...",
    ),
)


def _for_device(backend: str | None, device_type: str) -> str | None:
    """Return a device's backend from a text such as "cpu:gloo,cuda:nccl"; a plain name is for all devices."""
    if not backend or backend == "undefined":
        return None
    if ":" not in backend:
        return backend.lower()
    parts = dict(part.split(":", 1) for part in backend.lower().split(",") if ":" in part)
    return parts.get(device_type)


def _check_world(world: World, init_method: str | None, size: int, rank: int, *, from_variables: bool) -> None:
    """Raise UserError if the rank or world size that torch would read differs from the job's."""
    query = parse_qs(urlparse(init_method or "").query)
    variables = os.environ if from_variables and (init_method or "env://").startswith("env://") else {}
    asked = [
        ("world size", world.size, [size, *query.get("world_size", []), variables.get("WORLD_SIZE")]),
        ("rank", world.rank, [rank, *query.get("rank", []), variables.get("RANK")]),
    ]
    for what, ours, theirs in asked:
        given = next((str(value) for value in theirs if value not in (-1, None)), str(ours))
        if given != str(ours):
            remedy = "start that many ranks, or leave rank and world_size out there"
            raise UserError(f"the script asks for {what} {given}, but in this job it is {ours}; {remedy}")
