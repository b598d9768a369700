"""Start and end a job, for scripts and `cpudist-train`, and run the parts of a training loop that differ between
backends.
"""

import sys
from collections.abc import Iterable, Sized
from numbers import Real
from operator import index
from typing import Any, Literal

import torch

from cpudist import huggingface, launchers
from cpudist.balance.sampler import SharesSampler
from cpudist.console import show_lines_at_once
from cpudist.errors import UserError
from cpudist.job import Job, script_groups
from cpudist.job.job import current, require, start_job
from cpudist.job.job_options import JobOptions
from cpudist.launchers import Launcher
from cpudist.observability.training_figures import checked
from cpudist.optimization.padding import TrimmedBatches
from cpudist.patching.patch import apply
from cpudist.pinning import Pinning, decide_in_place
from cpudist.world import World


def init(
    backend: str = "auto",
    timeout: float | None = None,
    *,
    interface: str | None = None,
    pin: bool = True,
    compress: str | None = None,
    resume: Literal["auto", "never"] | None = None,
    async_checkpoint: bool | None = None,
    stall: float | None = None,
    balance: bool | None = None,
    **options: Any,
) -> World:
    """Join the job that the launcher has started, and make its default process group.

    Works under Intel MPI, MPICH and Open MPI (``mpirun``), Slurm (``srun``), torchrun, Kubeflow's PyTorchJob, and as a
    single process. Afterwards `torch.distributed` is ready, and the variables that libraries read (RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set. Until `shutdown`, accelerate and Trainer join this
    process group and take ``ddp_backend="ccl"``, ``use_ipex`` and ``no_cuda``; call `init` before you import them.
    A rank that its launcher has not pinned moves to its share of the node's cores, and adapts its number of threads
    unless the script or OMP_NUM_THREADS has set it; with OMP_PROC_BIND it does neither (docs/placement.md). `shutdown`
    undoes both. While a job runs, as under ``cpudist-train``, `init` returns the job's world and sets those of
    `timeout`, `compress`, `resume`, `async_checkpoint`, `stall` and `balance` that are not set yet. One line names
    options that come too late. After `shutdown`, `init` starts a new job, with any backend.

    Args:
        backend: ``"auto"`` is ccl if it loads on every rank, otherwise gloo with one warning line. A named backend has
            no fallback: the start fails if it cannot be used.
        timeout: limit of the start and of every collective, in seconds; 300 by default.
        interface: the network interface of the rendezvous and of all messages, such as ``"eth0"``; any by default.
        pin: False leaves affinity and threads unchanged.
        compress: the compression of gradients between hosts: ``"auto"``, ``"none"``, ``"bf16"``, ``"int8"``,
            ``"powersgd"`` or ``"powersgd:RANK"`` (docs/slow-networks.md). None: ``"auto"`` if Trainer gets
            ``use_ipex``, otherwise ``"none"``.
        resume: ``"auto"`` (default): after a restart `Checkpoints` and Trainer resume from this run's newest complete
            checkpoint; ``"never"``: they start at the first step again.
        async_checkpoint: Trainer continues once a checkpoint is copied in memory, while a thread writes the copy.
        stall: end the job with the stacks of all ranks when no rank has made a step, a collective or a batch for so
            many seconds, counted from the first step on (docs/reliability.md). None: never.
        balance: in Trainer and with `shares`, let each rank's share of a step's samples follow its speed
            (docs/unequal-hosts.md).
        options: the backend's own options, listed by ``cpudist-train --help``: ``--show-sharding`` there is
            ``show_sharding=True`` here. Options of another backend have no effect except a printed line.

    Returns:
        This rank's `World`.

    Raises:
        UserError: an argument is wrong, the launcher's variables contradict each other or MPI, the backend cannot be
            used, a process group exists that cpudist did not make, or the version of transformers or accelerate is not
            supported.
        StartupTimeout: a rank did not arrive in time; the message names it.

    Examples:
        Under ``mpirun -n 2 python``:

        >>> world = cpudist.init()
        >>> world.size
        2
    """
    wanted, running = JobOptions.from_given(locals(), backend_options=options), current()
    if running is not None:
        running.take(wanted)
        return running.world
    launcher = launchers.detect()
    pinning = decide_in_place(launcher, torch.get_num_threads()) if pin else None
    started = enter(launcher, wanted, pinning)
    started.record.name_run(sys.argv[0])  # only into CPUDIST_RUNS: a library writes nothing unasked
    return started.world


def enter(launcher: Launcher, options: JobOptions, pinning: Pinning | None = None) -> Job:
    """Start the job that `launcher` describes, and let scripts and libraries join its process group.

    The arguments and errors are those of `start_job`.
    """
    if launcher.name != "single":
        show_lines_at_once()
    started = start_job(launcher, options, pinning)
    apply(script_groups.PATCHES, started, started.changes)
    huggingface.install(started)
    return started


def shutdown() -> None:
    """Shut the job down: wait for the other ranks, then undo everything that it has changed in this process.

    Does nothing without a job, and under `cpudist-train`, which shuts the job down when the script ends.

    Examples:
        >>> world = cpudist.init()
        >>> cpudist.shutdown()
        >>> cpudist.init("gloo").backend  # a new job
        'gloo'
    """
    running = current()
    if running is not None:
        running.end_of_script()


def wrap(model: torch.nn.Module, *, compress: str | None = None, **options: Any) -> torch.nn.Module:
    """Wrap the model, in DDP or the backend's own wrapper, so that gradients are averaged over all ranks.

    Args:
        model: the model, on `World.device`.
        compress: the compression of gradients between hosts: "auto", "none", "bf16", "int8", "powersgd" or
            "powersgd:RANK" (docs/slow-networks.md). A scheme that the backend does not have has no effect except a
            printed line. None: the job's scheme (from `init` or ``cpudist-train --compress``), by default "none".
        options: options of `DistributedDataParallel`, or of the backend's own wrapper.

    Returns:
        The wrapped model.

    Raises:
        UserError: there is no running job, `model` is no module, `compress` is unknown or does not go with the model,
            or the ranks give different schemes.

    Examples:
        >>> world = cpudist.init()
        >>> model = cpudist.wrap(torch.nn.Linear(8, 2).to(world.device))
        >>> model(torch.ones(4, 8)).shape
        torch.Size([4, 2])
    """
    job = require()
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"wrap takes the model, a Module, not {type(model).__name__}; step takes the optimizer")
    job.record.note_model(model)
    scheme = job.ddp_models.applicable(compress)
    return job.ddp_models.wrap(lambda: job.backend.wrap(model, **options), scheme)


def step(optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
    """Apply the gradients of a backward pass, on any backend.

    Args:
        optimizer: the optimizer.
        scaler: for float16, the GradScaler from `cpudist.scaler` that has scaled the loss. It unscales the
            gradients, skips steps whose gradients are not finite, and is updated.

    Raises:
        UserError: there is no running job, or this is no optimizer.

    Examples:
        >>> model = cpudist.wrap(torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model(torch.ones(4, 8)).sum().backward()
        >>> cpudist.step(optimizer)
    """
    job = require()
    if not hasattr(optimizer, "step"):
        raise UserError(f"step takes the optimizer, not {type(optimizer).__name__}; wrap takes the model")
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    job.backend.devices.end_step()


def batches(loader: Iterable[Any], *, trim: torch.nn.Module | None = None) -> Iterable[Any]:
    """Return the batches of `loader` on this rank's device, copied ahead of their use if copying is slow.

    Args:
        loader: yields this rank's batches, as with `DistributedSampler`: CPU tensors, also in tuples, lists or dicts.
        trim: the model of transformers that gets the batches, dicts with an ``attention_mask``, on CPUs. Columns in
            which every row is padding are left out where the model's loss stays the same (docs/trainer.md).

    Raises:
        UserError: there is no running job; or with `trim`, padding may change the model's loss, a batch has no mask, or
            the devices are not CPUs.

    Examples:
        >>> loader = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=16)
        >>> [len(batch) for batch in cpudist.batches(loader)]
        [16, 16, 8]
    """
    devices = require().backend.devices
    if trim is not None and devices.type != "cpu":
        raise UserError(f"trim is for CPUs: {devices.type} compiles for each width; leave it out")
    return devices.batches(loader if trim is None else TrimmedBatches(loader, trim))


def shares(
    dataset: Sized, batch_size: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
) -> SharesSampler:
    """Return a sampler of this rank's batches, for DataLoader's argument `batch_sampler`; shares may be unequal.

    The ranks together get the batches that `DistributedSampler` gives them, but no sample twice. The models that `wrap`
    returns weight the gradients of unequal batches: their average is then the gradient of one process with all samples.
    The loss must be a mean over the samples of the batch; `backward` raises UserError for a loss that it recognises as
    a sum. With ``--balance``, shares follow the ranks' speeds.

    Args:
        dataset: the data, of which only the length is used.
        batch_size: the number of samples in a rank's batch if shares are equal.
        shuffle, seed: whether the order changes with each epoch (`set_epoch`), and the seed of all orders.
        drop_last: whether to leave out the last batch of an epoch if it has fewer samples.

    Returns:
        The sampler, with `set_epoch`, `state_dict` and `load_state_dict`: a loop can resume on any number of ranks.

    Raises:
        UserError: there is no running job, or `batch_size` is no whole number from 1 on.

    Examples:
        Under ``mpirun -n 2 python``, on each rank:

        >>> data = torch.ones(40, 8)
        >>> loader = torch.utils.data.DataLoader(data, batch_sampler=cpudist.shares(data, batch_size=16))
        >>> [len(batch) for batch in loader]
        [16, 4]
    """
    if (size := checked("batch_size", batch_size, index)) == 0:
        raise UserError("batch_size must be a whole number from 1 on, not 0")
    return SharesSampler(require().balance, dataset, size, shuffle=shuffle, seed=seed, drop_last=drop_last)


def mean(tensor: torch.Tensor | float) -> torch.Tensor:
    """Return the mean of `tensor` over all ranks, on the CPU and in float64; every rank calls it.

    Args:
        tensor: a tensor on the CPU or on `World.device`, of the same shape on all ranks, or a number.

    Raises:
        UserError: there is no running job, or `tensor` is neither a tensor nor a number.

    Examples:
        With two ranks:

        >>> world = cpudist.init()
        >>> cpudist.mean(torch.tensor([world.rank, 3.0]))
        tensor([0.5000, 3.0000], dtype=torch.float64)
    """
    if isinstance(tensor, Real):
        tensor = torch.tensor(float(tensor), dtype=torch.float64)
    elif not isinstance(tensor, torch.Tensor):
        raise UserError(f"mean takes a tensor or a number, not {type(tensor).__name__}; torch.as_tensor makes a tensor")
    return require().backend.mean(tensor)


def log(*, loss: float | torch.Tensor | None = None, samples: int = 0, tokens: int = 0) -> dict[str, float]:
    """Log figures of your own training loop, for `cpudist top`, `summary`, `forecast` and metrics.

    Optimizer steps are counted without this call. A Trainer needs no call.

    Args:
        loss: the loss of the newest step, on this rank or over all ranks: a number, or a tensor of one element.
        samples, tokens: this rank's samples and tokens since the last call. The speed of all ranks is computed as if
            the other ranks had as many, or with `shares` in proportion to their shares.

    Returns:
        Figures for a reporter such as TensorBoard or wandb, by name: ``loss``, and once the speed is known
        ``cpudist_samples_per_second``, ``cpudist_tokens_per_second``, ``cpudist_tokens_per_second_per_core``, after
        `cpudist test` ``cpudist_product_share``, and on rank 0 the ranks' waits (docs/trainer.md, Reporters).

    Raises:
        UserError: there is no running job, the loss is no number, or `samples` or `tokens` is no whole number.

    Examples:
        >>> world = cpudist.init()
        >>> cpudist.log(loss=0.25, samples=32)
        {'loss': 0.25}
    """
    counts = {name: checked(name, count, index) for name, count in (("samples", samples), ("tokens", tokens))}
    return require().record.log(None if loss is None else checked("loss", loss, float), counts)
