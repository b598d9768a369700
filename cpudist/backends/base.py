"""What cpudist asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

    from cpudist.backends.calls import Calls
    from cpudist.world import World

# What `cpudist.optimize` can do to a model and its optimizer.
Optimization = Literal["ipex", "fused", "channels_last", "keep_memory", "master_weights", "autocast", "compile"]


class Backend(ABC):
    """One way for ranks to compute together.

    The order of calls is `configure`, `unavailable`, `start`, then all others as often as wanted, then `stop`. Nothing
    here assumes tensors on the CPU, one process per device, or gradients that are reduced by hooks: a backend that runs
    its steps lazily, or shards one program over many devices, says so by `step`, `synchronize` and `wrap`.

    Attributes:
        name: what users call it.
        device_type: where its ranks keep models and batches, as in ``torch.device(device_type)``.
        makes_process_group: whether `start` makes `torch.distributed`'s default process group, which scripts and
            libraries then use.
        optimizations: what `cpudist.optimize` may do to a model that lives on its devices.
        fixed_shapes: whether batches of a new shape are slow, so that padding to few lengths pays.
    """

    name: ClassVar[str]
    device_type: str = "cpu"
    makes_process_group: bool = True
    optimizations: frozenset[Optimization] = frozenset()
    fixed_shapes: bool = False

    def configure(self, **options: Any) -> None:
        """Take what the user says for this backend alone.

        Raises:
            UserError: it takes no such options, or not these values.
        """
        if options:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            raise UserError(f"the backend {self.name} takes no {names}; leave it out, or name another --backend")

    def find_others(self) -> Mapping[str, str]:
        """This process's place among others, where no launcher has started it but its devices know: RANK, WORLD_SIZE …

        Called after `configure`, before any other. Returns the variables that torchrun would set; none: it is alone.
        """
        return {}

    def unavailable(self) -> str | None:
        """Why this process cannot use the backend, in one line that names the remedy; None when it can."""
        return None

    @abstractmethod
    def start(self, world: World, store: Store, timeout: float) -> None:
        """Make the ranks of `world` work together. All of them call it, and each returns or raises in bounded time.

        Args:
            world: this rank's place among the others; its `backend` is not set yet.
            store: all ranks' own, for them to meet in. Its keys are new.
            timeout: seconds for the start and for every collective after it.
        """

    def device(self) -> torch.device:
        """The device of this rank."""
        import torch

        return torch.device(self.device_type)

    def variables(self) -> Mapping[str, str]:
        """What the environment must hold while a job runs, so that other libraries use the same devices."""
        return {}

    @abstractmethod
    def wrap(self, model: torch.nn.Module, *, shard_optimizer: bool = False, **options: Any) -> torch.nn.Module:
        """Make the model's gradients agree across ranks; with `shard_optimizer` each rank updates its part.

        Raises:
            UserError: it cannot, or takes no such options.
        """

    def prepare(self, model: torch.nn.Module) -> None:  # noqa: B027 - most need nothing of the kind
        """Make ready a model that somebody else wraps and trains, as Trainer does; it is on its device."""

    def lay_out_by(self, table: Mapping[str, tuple[Any, ...]], whose: str) -> None:  # noqa: B027 - most have no mesh
        """Take a recipe's table of how parameters lie on a mesh of devices, if the user has named no other.

        Args:
            table: patterns of parameters' names, and for each axis of the parameter the axes of the mesh that cut it.
            whose: the recipe's name.
        """

    def check_float16(self) -> None:
        """Refuse float16 where this backend's devices cannot train in it.

        Raises:
            UserError: names the reason and what to use instead.
        """
        raise UserError(f"float16 is not for the backend {self.name}; use bfloat16 (--bf16) or float32")

    def autocast(self, dtype: torch.dtype) -> torch.autocast:
        """What lets a model on this backend's devices compute in `dtype` where that is safe."""
        import torch

        return torch.autocast(self.device_type, dtype=dtype)

    def skip_on_device(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Let `optimizer` leave out the steps that a GradScaler rejects without waiting for the device to say which.

        Returns what was done, for the run record; None where nothing was.
        """
        return None

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Apply the gradients of a backward pass; where computing is lazy, this ends the step and starts its work.

        With a GradScaler, which has scaled the loss, the gradients are unscaled first, and left out if not finite.
        """
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def synchronize(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait until this rank's device has done all that it was given. The CPU always has."""

    def ddp_options(self) -> dict[str, Any]:
        """What suits `DistributedDataParallel` on this backend where somebody else wraps the model, as Trainer does."""
        return {}

    def set_timeout(self, seconds: float) -> None:
        """Bound every collective from now on, in the default group and in those made later.

        Raises:
            UserError: this backend cannot change its limit after the start.
        """
        raise UserError(f"the timeout of the backend {self.name} cannot be changed; give it at the start")

    def transport(self) -> str | None:
        """What carries the messages: "mpi", "ofi", "tcp", …; None before `start`."""
        return None

    def provider(self) -> str | None:
        """The provider of libfabric that carries messages between hosts, such as "tcp"; several with a plus sign.

        What has been opened, not what might be; None where that is none, or not known.
        """
        return None

    def details(self) -> dict[str, Any]:
        """More for the run record: library versions and the like."""
        return {}

    def communication_seconds(self) -> float | None:
        """Seconds for which this process has been blocked in communication; None where that is not measured."""
        return None

    def calls(self) -> Calls | None:
        """What this rank is doing in communication just now; None where that is not known.

        Any thread may ask at any time, also while another one is blocked in a call. It takes milliseconds; up to a
        fifth of a second, and then None, while a call blocks inside a transport, such as the making of a group.
        """
        return None

    @abstractmethod
    def stop(self) -> None:
        """Release everything; the process may go on, and start a backend again."""
