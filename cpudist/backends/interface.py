"""The interface of a backend, and what it declares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cpudist.backends.options import Option, with_defaults
from cpudist.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch.distributed import Store

    from cpudist.backends.calls import Calls
    from cpudist.changes import Changes
    from cpudist.world import World

# What `cpudist.optimize` can do to a model and its optimizer.
Optimization = Literal[
    "ipex", "fused", "channels_last", "keep_memory", "float32_products", "master_weights", "autocast", "compile"
]


class Backend(ABC):
    """One way for ranks to compute together.

    The order of calls is `configure`, `unavailable`, `start`, then all others as often as wanted, then `stop`. Nothing
    here assumes tensors on the CPU, one process per device, or gradients that are reduced by hooks: a backend that runs
    its steps lazily, or shards one program over many devices, implements that in `step`, `synchronize` and `wrap`.

    Commands import the class for its declarations before torch is imported (``cpudist-train --help`` does, and a
    rank before it is pinned). So the module of a backend of another package imports torch in its methods only.

    Attributes:
        name: what users call it.
        options: what users can set for this backend alone; `configure` takes them.
        companions: packages that it needs and that are each made for one release of torch.
        device_type: where its ranks keep models and batches, as in ``torch.device(device_type)``.
        makes_process_group: whether `start` makes `torch.distributed`'s default process group, which scripts and
            libraries then use.
        optimizations: what `cpudist.optimize` may do to a model that lives on its devices. Without "fused", Trainer's
            fused optimizers are replaced by their plain form.
        compressions: the schemes of `compression.SCHEMES` in which gradients can cross a network.
        hidden_warnings: texts of transformers' warnings that do not apply on this backend.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    companions: ClassVar[tuple[str, ...]] = ()
    device_type: str = "cpu"
    makes_process_group: bool = True
    optimizations: frozenset[Optimization] = frozenset()
    compressions: ClassVar[frozenset[str]] = frozenset()
    hidden_warnings: tuple[str, ...] = ()

    def configure(self, **values: Any) -> None:
        """Take the values of `options` that the user has set; `configured` has them with all defaults.

        Raises:
            UserError: the backend has no such options, or they do not take these values.
        """
        self.configured = with_defaults(self.name, self.options, values)

    @classmethod
    def applies(cls, name: str, values: Mapping[str, Any]) -> bool:
        """Return whether the option `name` has an effect on this backend beside the options `values`."""
        return any(option.name == name for option in cls.options)

    @classmethod
    def findings(cls, environment: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
        """Tell `cpudist doctor` what this backend would do on this machine.

        Args:
            environment: the environment variables.

        Returns:
            For each finding its level, one line that says what was found, and the remedy (empty where none is needed).
        """
        return iter(())

    @classmethod
    def devices_here(cls) -> str | None:
        """Return which accelerators of this machine the backend could use, such as "2 TPU devices"; None for none."""
        return None

    def processes_per_node(self, asked: int) -> int:
        """Return how many ranks a notebook starts on this node where the user asks for `asked`.

        Raises:
            UserError: the backend cannot be used here.
        """
        return asked

    @classmethod
    def find_others(cls, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the variables that torchrun would set, where the devices know of other processes and no launcher does.

        Args:
            options: what the user says for this backend alone.

        Returns:
            The variables; empty where this process is alone.
        """
        return {}

    def unavailable(self) -> str | None:
        """Return why this process cannot use the backend, in one line that names the remedy; None when it can."""
        return None

    @abstractmethod
    def start(self, world: World, store: Store, timeout: float) -> None:
        """Connect the ranks of `world`. All of them call it, and each returns or raises in bounded time.

        Args:
            world: this rank's place among the others; its `backend` is not set yet.
            store: a store of all ranks, without any keys yet.
            timeout: bound on the start and on every collective after it, in seconds.
        """

    def device(self) -> torch.device:
        """Return the device of this rank."""
        import torch

        return torch.device(self.device_type)

    def variables(self) -> Mapping[str, str]:
        """Return environment variables by which other libraries use the same devices; set while a job runs."""
        return {}

    def library_patches(self) -> Mapping[str, Callable[[Changes, ModuleType], None]]:
        """Return what to change in other packages while a job runs, by module.

        Each function is called with the job's changes and its module, once that has been imported.
        """
        return {}

    @abstractmethod
    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model in a form whose gradients are averaged over all ranks.

        Args:
            model: the model, on this rank's device.
            options: the backend's own; those of `DistributedDataParallel` where the backend uses it.

        Raises:
            UserError: the backend takes no such options.
        """

    def prepare(self, model: torch.nn.Module) -> None:  # noqa: B027 - most need nothing of the kind
        """Prepare a model, on its device, that Trainer wraps itself."""

    def compress(self, model: torch.nn.Module, scheme: str) -> None:  # noqa: B027 - only backends with `compressions`
        """Let the gradients of a model that is wrapped cross the network in `scheme`. All ranks of the model call it.

        With "auto", ranks only check that all of them ask for it; the scheme is chosen later.

        Raises:
            UserError: the model's gradients cannot be compressed, or ranks differ in the scheme.
        """

    def compressed_bytes(self) -> tuple[int, int] | None:
        """Return how many bytes of gradients were compressed so far, and to how many; None where none were."""
        return None

    def check_float16(self) -> None:
        """Check that this backend's devices can train in float16.

        Raises:
            UserError: they cannot; the message names the reason and what to use instead.
        """
        raise UserError(f"float16 is not for the backend {self.name}; use bfloat16 (--bf16) or float32")

    def autocast(self, dtype: torch.dtype) -> torch.autocast:
        """Return the context in which a model on this backend's devices computes in `dtype` where that is safe."""
        import torch

        return torch.autocast(self.device_type, dtype=dtype)

    def skip_on_device(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Let `optimizer` find out on the device which steps a GradScaler rejects, instead of waiting for the device.

        Returns:
            What was done, for the run record; None where nothing was.
        """
        return None

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        """Apply the gradients of a backward pass; a device that computes lazily starts its work here.

        Args:
            optimizer: the optimizer.
            scaler: the GradScaler that has scaled the loss. It unscales the gradients and skips steps that are not
                finite.
        """
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mean of `tensor`, of any shape, over all ranks, on the CPU and in float64; all ranks call it."""
        import torch
        import torch.distributed as dist

        mean = tensor.detach().cpu().to(torch.float64, copy=True)  # converted on the CPU: not all devices have float64
        dist.all_reduce(mean)
        return mean.div_(dist.get_world_size())

    def scaler(self) -> Any:
        """Return a GradScaler for float16 on this backend's devices.

        Raises:
            UserError: there is none.
        """
        import torch

        return torch.amp.GradScaler(self.device_type)

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of `loader` on this rank's device."""
        return loader

    def end_step(self) -> None:  # noqa: B027 - for devices that compute lazily
        """Start the device's work without waiting for it, at the end of a step that has not called `step`."""

    def synchronize(self) -> None:  # noqa: B027 - most have nothing to wait for
        """Wait until this rank's device has completed all work that it was given."""

    def random_state(self) -> Any:
        """Return the state of this rank's device's random generator, for a checkpoint; None where the CPU's is used."""
        return None

    def set_random_state(self, state: Any) -> None:  # noqa: B027 - most use the CPU's
        """Set the device's random generator to a state that `random_state` has returned."""

    def ddp_options(self) -> dict[str, Any]:
        """Return the best options of `DistributedDataParallel` here, for Trainer, which wraps models itself."""
        return {}

    def set_timeout(self, seconds: float) -> None:
        """Set the bound on every collective from now on, in the default group and in those made later.

        Args:
            seconds: the new bound.

        Raises:
            UserError: this backend cannot change its timeout after the start.
        """
        raise UserError(f"the timeout of the backend {self.name} cannot be changed; give it at the start")

    def transport(self) -> str | None:
        """Return what carries the messages: "mpi", "ofi", "tcp", …; None before `start`."""
        return None

    def details(self) -> dict[str, Any]:
        """Return more fields for the run record, such as library versions."""
        return {}

    def communication_seconds(self) -> float | None:
        """Return the seconds that this process has been blocked in communication; None where that is not measured."""
        return None

    def calls(self) -> Calls | None:
        """Return this rank's communication at this moment; None where that is not known.

        Any thread may call this at any time, also while another one is blocked in a call. It takes milliseconds. While
        a call blocks inside a transport (while a group is created, say), it takes up to 0.2 s and returns None.
        """
        return None

    def progress(self) -> object:
        """Return a value that is another one after a collective has begun or ended; any thread may call this."""
        calls = self.calls()
        return calls and [(call.group, call.sequence) for call in (*calls.finished, *calls.under_way)]

    @abstractmethod
    def stop(self) -> None:
        """Release everything; the process may then start a backend again."""
