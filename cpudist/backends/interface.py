"""The interface of a backend, of its devices where these are not the CPU, and of the calls that it reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cpudist.backends.options import Option, with_defaults
from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

    from cpudist.changes import Changes
    from cpudist.world import World


@dataclass(frozen=True)
class Call:
    """One call of `torch.distributed` as one rank made it.

    Attributes:
        name: as c10d calls the operation: "all_reduce", "recv".
        group: the process group's name; empty for the default one.
        ranks: the group's ranks in the job; None: all ranks.
        sequence: of a collective, its number among those of its group, from 1, the same on all its ranks. None for
            send and recv.
        peer: of send and recv, the other rank in the job; None where it may be any.
        bytes: size of the tensors that hold the result on this rank; None: unknown.
        dtype: "float32"; empty where there is none.
        shape: of the first of these tensors.
        seconds: since the rank called it.
    """

    name: str
    group: str = ""
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None
    peer: int | None = None
    bytes: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Calls:
    """This rank's communication at one moment.

    Attributes:
        under_way: calls that are not complete, oldest first. After a timeout: those that failed with it.
        finished: the collective that was completed last in each group.
    """

    under_way: tuple[Call, ...] = ()
    finished: tuple[Call, ...] = ()


class Devices:
    """The devices of a backend's ranks: here the CPU, which computes at once.

    A backend of other devices derives from this class, and overrides what differs. Commands ask before torch is
    imported (`findings`, `found`), so the module imports torch in methods only.

    Attributes:
        type: where ranks keep models and batches, as in ``torch.device(type)``. On other devices than "cpu",
            `cpudist.optimize` applies only the means that PyTorch has everywhere.
        companions: packages that they need and that are each made for one release of torch.
    """

    type: str = "cpu"
    companions: ClassVar[tuple[str, ...]] = ()

    def findings(self, environment: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
        """Tell `cpudist doctor` how the backend would work on this machine.

        Returns:
            For each finding its level, the result in one line, and the remedy (empty where none is needed).
        """
        return iter(())

    def found(self) -> str | None:
        """Return which accelerators of this machine the backend can use, such as "2 TPU devices"; None for none."""
        return None

    def prepare(self, model: torch.nn.Module) -> None:
        """Prepare a model that lies on the device and is about to be wrapped; a second call does nothing."""

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of `loader` on this rank's device."""
        return loader

    def end_step(self) -> None:
        """Start the device's work without waiting for it, at the end of a step; for devices that compute lazily."""

    def synchronize(self) -> None:
        """Wait until this rank's device has completed all work that it was given."""

    def random_state(self) -> Any:
        """Return the state of the device's random generator, for a checkpoint; None where the CPU's is used."""
        return None

    def set_random_state(self, state: Any) -> None:
        """Set the device's random generator to a state that `random_state` has returned."""


class Backend(ABC):
    """One way for ranks to compute together, in `torch.distributed`'s default process group, which `start` makes.

    The order of calls is `configure`, `unavailable`, `start`, then all others as often as wanted, then `stop`. Nothing
    here assumes tensors on the CPU, one process per device, or gradients that are reduced by hooks: `devices` describes
    other devices, and `wrap` returns the model in any form.

    Commands import the class for its declarations before torch is imported (``cpudist-train --help`` does, and a
    rank before it is pinned). So the module of a backend of another package imports torch in its methods only.

    Attributes:
        options: the options of this backend; `configure` takes them.
        compressions: the schemes of `compression.SCHEMES` in which gradients can cross a network.
        configured: the values of all `options`, once `configure` was called.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    compressions: ClassVar[frozenset[str]] = frozenset()
    devices: ClassVar[Devices] = Devices()
    configured: Mapping[str, Any]

    def configure(self, **values: Any) -> None:
        """Take the values of `options` that the user has set.

        Raises:
            UserError: the backend has no such options, or they do not take these values.
        """
        self.configured = with_defaults(self.name, self.options, values)

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

    @abstractmethod
    def stop(self) -> None:
        """Release everything; the process may then start a backend again."""

    def change_libraries(self, changes: Changes) -> None:  # noqa: B027 - most need nothing of the kind
        """Let other packages use the same devices while a job runs, once the backend has started.

        Args:
            changes: takes variables of the environment, and functions of modules; the job undoes it. A module that the
                script may import later is changed then: ``changes.then(after_import(name, change))``.
        """

    @abstractmethod
    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model in a form whose gradients are averaged over all ranks.

        Args:
            model: the model, on this rank's device.
            options: the backend's own; those of `DistributedDataParallel` where the backend uses it.

        Raises:
            UserError: the backend cannot do that, or takes no such options.
        """

    def ddp_options(self) -> dict[str, Any]:
        """Return the best options of `DistributedDataParallel` here, for Trainer, which wraps models itself."""
        return {}

    def compress(self, model: torch.nn.Module, scheme: str) -> None:  # noqa: B027 - only backends with `compressions`
        """Let the gradients of a model that is wrapped cross the network in `scheme`. All ranks of the model call it.

        With "auto", ranks only check that all of them ask for it; the scheme is chosen later.

        Raises:
            UserError: the model's gradients cannot be compressed, or ranks differ in the scheme.
        """

    def compressed_bytes(self) -> tuple[int, int] | None:
        """Return the bytes of gradients before and after compression so far; None where none were compressed."""
        return None

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mean of `tensor`, of any shape, over all ranks, on the CPU and in float64; every rank calls it."""
        import torch
        import torch.distributed as dist

        mean = tensor.detach().cpu().to(torch.float64, copy=True)  # converted on the CPU: not all devices have float64
        dist.all_reduce(mean)
        return mean.div_(dist.get_world_size())

    def set_timeout(self, seconds: float) -> None:
        """Set the bound on every later collective, in the default group and in groups made later.

        Raises:
            UserError: this backend cannot change its timeout after the start.
        """
        raise UserError(f"the timeout of the backend {self.name} cannot be changed; give it at the start")

    def transport(self) -> str | None:
        """Return the transport of the messages: "mpi", "ofi", "tcp", …; None before `start`."""
        return None

    def details(self) -> dict[str, Any]:
        """Return more fields for the run record, such as library versions."""
        return {}

    def communication_seconds(self) -> float | None:
        """Return the seconds that this process has been blocked in communication; None: not measured."""
        return None

    def communicated_bytes(self) -> int | None:
        """Return the bytes that this process has communicated, the larger buffer of each call; None: not counted."""
        return None

    def has_failed(self) -> bool:
        """Return whether communication has failed for good, so that this process cannot end well."""
        return False

    def calls(self) -> Calls | None:
        """Return this rank's communication at this moment; None: unknown.

        Any thread may call this at any time, also while another one is blocked in a call. It takes milliseconds. While
        a call blocks inside a transport (while a group is created, say), it takes up to 0.2 s and returns None.
        """
        return None

    def progress(self) -> list[tuple[str, int | None]] | None:
        """Return each group's last completed collective and newer calls, by their numbers; any thread may call this."""
        calls = self.calls()
        return None if calls is None else [(call.group, call.sequence) for call in (*calls.finished, *calls.under_way)]
