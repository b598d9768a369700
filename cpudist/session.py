"""The job as this process takes part in it: `init`, `wrap`, `step`, `shutdown`.

It puts the layers below together: a launcher says which rank this is, the ranks meet, they agree on a backend, the
backend makes the process group. It knows nothing of Trainer, recipes or the command line.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cpudist import backends, failure, launchers
from cpudist.backends.base import Backend, Seat
from cpudist.errors import UserError
from cpudist.rendezvous import Meeting, exchange, meet, node_identity
from cpudist.world import Member, World, assign_nodes

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store


@dataclass
class Session:
    """Everything that `init` has set up in this process."""

    world: World
    backend: Backend
    meeting: Meeting
    timeout: float  # seconds


_session: Session | None = None


def init(backend: str = "auto", timeout: float = 300.0) -> World:
    """Join the job that the launcher started and make its default process group; see `cpudist.init`."""
    global _session
    if _session is not None:
        if backend not in ("auto", _session.world.backend):
            raise UserError(f"cpudist is already running on {_session.world.backend}; call cpudist.shutdown() first")
        return _session.world
    import torch.distributed as dist

    if timeout <= 0:
        raise UserError(f"the timeout must be a positive number of seconds, not {timeout}")
    if dist.is_initialized():
        raise UserError("torch.distributed is initialised already; call cpudist.init() instead of init_process_group()")
    launcher = launchers.detect(os.environ)
    placement = launcher.placement(os.environ)
    meeting = meet(launcher, placement, os.environ, timeout)
    everyone = _Everyone(meeting.store, placement.rank, placement.size, timeout)
    members = [
        Member.from_json(text)
        for text in everyone.tell("member", Member(node_identity(), socket.gethostname(), placement).to_json())
    ]
    world = assign_nodes(members, launcher.name)[placement.rank]
    failure.watch(world, meeting.store, timeout)
    chosen = _agree(backend, everyone)
    chosen.start(Seat(world.rank, world.size, world.local_rank, world.local_size, meeting.store, timeout))
    failure.keep_excepthook()
    world = replace(world, backend=chosen.name, device_type=chosen.device().type)
    _session = Session(world, chosen, meeting, timeout)
    _export(world, meeting)
    return world


def shutdown() -> None:
    """Leave the job: wait for the other ranks, then take the process group down. Does nothing before `init`."""
    global _session
    if _session is None:
        return
    session, _session = _session, None
    failure.finish()
    session.backend.stop()


def wrap(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """Make the model's gradients agree across ranks: DDP, or the backend's own way; ``options`` are handed to it."""
    return _running().backend.wrap(model, **options)


def step(optimizer: torch.optim.Optimizer) -> None:
    """Apply the gradients of a backward pass; the same call for every backend."""
    _running().backend.step(optimizer)


def ddp_options() -> dict[str, Any]:
    """What suits `DistributedDataParallel` here where somebody else than `wrap` makes it."""
    return _running().backend.ddp_options()


def set_timeout(seconds: float) -> None:
    """Bound every collective of the job from now on, on this rank."""
    session = _running()
    if seconds != session.timeout:
        session.backend.set_timeout(seconds)
        failure.set_timeout(seconds)
        session.timeout = seconds


def timeout() -> float:
    """The bound on every collective of the job, in seconds."""
    return _running().timeout


def current() -> World | None:
    """The world of this process, or None before `init`."""
    return _session.world if _session else None


def store() -> Store:
    """The store that all ranks of the job share."""
    return _running().meeting.store


def transport() -> str | None:
    """What carries the messages, as the backend names it."""
    return _session.backend.transport() if _session else None


def details() -> dict[str, str]:
    """What the backend adds to the run record."""
    return _session.backend.details() if _session else {}


def communication_seconds() -> float | None:
    """Seconds that this process has been blocked in communication so far; None where that is not measured."""
    return _session.backend.communication_seconds() if _session else None


@dataclass(frozen=True)
class _Everyone:
    store: Store
    rank: int
    size: int
    timeout: float

    def tell(self, key: str, value: str) -> list[str]:
        """Publish this rank's value and return all ranks' values, in rank order."""
        return exchange(self.store, self.rank, self.size, f"init/{key}", value, self.timeout, what="starting the job")


def _running() -> Session:
    if _session is None:
        raise UserError("there is no running job in this process; call cpudist.init() first")
    return _session


def _agree(name: str, everyone: _Everyone) -> Backend:
    """Choose the backend on which all ranks can work."""
    for candidate in ("ccl", "gloo") if name == "auto" else (name,):
        backend = backends.get(candidate)()
        reasons = everyone.tell(f"backend/{candidate}", backend.unavailable() or "")
        failed = [(rank, reason) for rank, reason in enumerate(reasons) if reason]
        if not failed:
            return backend
        rank, reason = failed[0]
        if name != "auto":
            raise UserError(f"backend {candidate} cannot be used on rank {rank}: {reason}")
        if everyone.rank == 0:
            print(
                f"cpudist: warning: not using {candidate}, rank {rank} says: {reason}",
                file=sys.stderr,
                flush=True,
            )
    raise UserError("no backend can be used on all ranks")


def _export(world: World, meeting: Meeting) -> None:
    """Set the variables that accelerate, transformers, datasets and others read."""
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.local_rank),
        LOCAL_WORLD_SIZE=str(world.local_size),
        MASTER_ADDR=meeting.address,
        MASTER_PORT=str(meeting.port),
    )
