"""The door of a job: `enter` and `shutdown`, for scripts that call `cpudist.init` and for `cpudist-train` alike."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cpudist import backends, environments, huggingface
from cpudist.environments.single import Single
from cpudist.errors import UserError
from cpudist.job.gradients import note_at_first_use
from cpudist.job.job import current, require, start_job
from cpudist.job.pinned import decide_in_place
from cpudist.job.pinning_check import PinningCheck
from cpudist.job.process_group import let_scripts_join
from cpudist.optimization import master_weights

if TYPE_CHECKING:
    import torch

    from cpudist.environments import Environment
    from cpudist.job import Job
    from cpudist.pinning import Pinning
    from cpudist.world import World


def init(
    backend: str = "auto",
    timeout: float = 300.0,
    *,
    interface: str | None = None,
    pin: bool = True,
    **options: Any,
) -> World:
    """Join the job that the launcher started and make its default process group.

    Works under Intel MPI, MPICH and Open MPI (``mpirun``), Slurm (``srun``), torchrun, Kubeflow's PyTorchJob, and as a
    single process. Afterwards `torch.distributed` is ready, and the variables that libraries read (RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set. Until `shutdown`, accelerate and Trainer join this
    process group and take ``ddp_backend="ccl"``, ``use_ipex`` and ``no_cuda``; best called before they are imported.
    A rank that its launcher has not pinned moves to its share of the node's cores and computes with as many threads,
    unless the script, OMP_NUM_THREADS or OMP_PROC_BIND says otherwise (docs/placement.md); `shutdown` takes that back.
    Calling it again returns the same world; after `shutdown` it starts a new job, with any backend.

    Args:
        backend: ``"auto"`` is ccl where it loads on every rank, otherwise gloo with one warning line; any other name is
            used or fails, it never falls back.
        timeout: bound on the start and on every collective, in seconds.
        interface: the network interface over which the ranks meet and send, such as ``"eth0"``; any by default.
        pin: False leaves affinity, threads and memory policy alone.
        options: the backend's own: for xla ``device``, ``mesh``, ``sharding`` and ``show_sharding``, as on the command
            line.

    Returns:
        This rank's `World`.

    Raises:
        UserError: the launcher's variables contradict each other or MPI, the backend cannot be used, a process group
            exists that cpudist did not make, or transformers or accelerate are of a version that cpudist does not know.
        StartupTimeout: a rank did not arrive in time; the message names it.
    """
    running = current()
    if running is None:
        environment = environments.detect()
        pinning = decide_in_place(environment) if pin else None
        running = enter(environment, backend, timeout, options, interface, pinning)
    elif backend not in ("auto", running.world.backend):
        raise UserError(f"cpudist is already running on {running.world.backend}; call cpudist.shutdown() first")
    return running.world


def enter(
    environment: Environment,
    backend: str,
    timeout: float,
    options: Mapping[str, Any] | None = None,
    interface: str | None = None,
    pinning: Pinning | None = None,
) -> Job:
    """Start the job that `environment` describes, with scripts and libraries on its process group; see `init`."""
    environment = _with_what_devices_know(environment, backend, options or {})
    started = start_job(environment, backend, timeout, options, interface, pinning)
    let_scripts_join(started)
    huggingface.install(started)
    return started


def _with_what_devices_know(environment: Environment, backend: str, options: Mapping[str, Any]) -> Environment:
    """The environment, or another one where no launcher is there but the backend's devices know of other processes."""
    if backend == "auto" or not isinstance(environment, Single):
        return environment
    candidate = backends.get(backend)()
    candidate.configure(**options)
    found = candidate.find_others()
    return environments.detect({**os.environ, **found}) if found else environment


def shutdown() -> None:
    """Leave the job: wait for the other ranks, then take back everything that it has changed.

    Does nothing without a job, and under `cpudist-train`, which leaves the job when the script has ended.
    """
    running = current()
    if running is not None and not running.held:
        if running.pinning is not None:
            PinningCheck(running, running.pinning).look()
        running.leave()


def wrap(model: torch.nn.Module, *, shard_optimizer: bool = False, **options: Any) -> torch.nn.Module:
    """Make the model's gradients agree across ranks: DDP, or the backend's own way.

    Args:
        model: the model, on `World.device`.
        shard_optimizer: on ccl and gloo, let each rank update its part of every parameter, so that time and state of
            the optimizer are divided by the number of ranks. Results and checkpoints are those of DDP, but all ranks
            call ``optimizer.state_dict()``. For optimizers of torch that update each element by itself, and for
            training loops of one's own; DDP's options do not apply.
        options: the backend's own; those of `DistributedDataParallel` for ccl and gloo.

    Raises:
        UserError: there is no running job, or the backend or the model allows no `shard_optimizer`.
    """
    job = require()
    if shard_optimizer:
        master_weights.check_without(model, "shard_optimizer=True")
        options["shard_optimizer"] = True
    wrapped = job.backend.wrap(model, **options)
    note_at_first_use(wrapped, job.record)
    return wrapped


def step(optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
    """Apply the gradients of a backward pass; the same call for every backend.

    Args:
        optimizer: whose step it is.
        scaler: for float16, the GradScaler that has scaled the loss: ``torch.amp.GradScaler("cpu")``, on xla
            ``torch_xla.amp.GradScaler()``. It takes part in the step, and is updated.

    Raises:
        UserError: there is no running job.
    """
    require().backend.step(optimizer, scaler)
