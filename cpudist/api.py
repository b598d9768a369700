"""`cpudist.init` and `cpudist.shutdown`: the session, with Hugging Face's libraries on its process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpudist import huggingface, session

if TYPE_CHECKING:
    from cpudist.world import World


def init(backend: str = "auto", timeout: float = 300.0) -> World:
    """Join the job that the launcher started and make its default process group.

    Works under Intel MPI, MPICH and Open MPI (``mpirun``), Slurm (``srun``), torchrun, Kubeflow's PyTorchJob, and as a
    single process. Afterwards `torch.distributed` is ready, and the variables that libraries read (RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT) are set. Until `shutdown`, accelerate and Trainer join this
    process group and take ``ddp_backend="ccl"``, ``use_ipex`` and ``no_cuda``; best called before they are imported.
    Calling it again returns the same world.

    Args:
        backend: ``"auto"`` is ccl where it loads on every rank, otherwise gloo with one warning line; any other name is
            used or fails, it never falls back.
        timeout: bound on the start and on every collective, in seconds.

    Returns:
        This rank's `World`.

    Raises:
        UserError: the launcher's variables contradict each other or MPI, the backend cannot be used, a process group
            exists that cpudist did not make, or transformers or accelerate are of a version that cpudist does not know.
        StartupTimeout: a rank did not arrive in time; the message names it.
    """
    world = session.init(backend, timeout)
    huggingface.install(world)
    return world


def shutdown() -> None:
    """Leave the job: wait for the other ranks, then take the process group down. Does nothing before `init`."""
    huggingface.remove()
    session.shutdown()
