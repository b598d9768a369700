"""The interfaces of a backend, its options and its devices, and the communication calls that a backend reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

    from cpudist.patching.undo import Changes
    from cpudist.world import World


@dataclass(frozen=True)
class Call:
    """One call of `torch.distributed` on one rank."""

    name: str  # c10d's name of the operation, such as "all_reduce" or "recv"
    group: str = ""  # the process group's name; empty for the default one
    ranks: tuple[int, ...] | None = None  # the group's ranks in the job; None: all ranks
    # Number of a collective in its group, from 1, the same on all ranks of the group. None for send and recv.
    sequence: int | None = None
    peer: int | None = None  # the other rank of a send or recv, as a rank of the job; None if a recv accepts any rank
    bytes: int | None = None  # size of this rank's result tensors; None: unknown
    dtype: str = ""  # type of these tensors, such as "float32"; empty if there are none
    shape: tuple[int, ...] = ()  # shape of the first of these tensors
    seconds: float = 0.0  # time since the call began on this rank


@dataclass(frozen=True)
class Calls:
    """This rank's communication at one moment."""

    # Incomplete calls, oldest first. After a timeout, ccl keeps reporting the calls that were incomplete at that time.
    under_way: tuple[Call, ...] = ()
    finished: tuple[Call, ...] = ()  # the last completed collective of each group
    unused: tuple[str, ...] = ()  # names of the groups without a collective so far


@dataclass(frozen=True)
class Option:
    """An option of one backend.

    Attributes:
        name: the keyword, such as "show_sharding"; the command line spells it ``--show-sharding``.
        help: one line for ``cpudist-train --help``.
        type: converts the text on the command line to the value; `bool`: a flag without a value.
        default: the value if the user gives none; False for a flag.
        choices: the values that are allowed; empty allows all.
        metavar: the value's name in the help.
        needs: name of another option that must be given too; empty: none.
    """

    name: str
    help: str
    type: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    metavar: str | None = None
    needs: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def with_defaults(backend: str, options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each of a backend's `options`: the user's, or the default if it is missing or None.

    Raise UserError for an unknown option, a value that is not allowed, and an option without the one that it needs.
    """
    known = {option.name: option for option in options}
    values = {name: value for name, value in values.items() if value is not None}
    if unknown := [Option(name, "").flag for name in values if name not in known]:
        raise UserError(f"the backend {backend} takes no {', '.join(unknown)}; leave it out, or name another backend")
    for name, value in values.items():
        choices = known[name].choices
        needed = known[name].needs
        if needed and value and not values.get(needed):
            raise UserError(f"{known[name].flag} has no effect without {known[needed].flag}; give both")
        if choices and value not in (*choices, known[name].default):
            allowed = ", ".join(map(str, choices))
            raise UserError(f"{known[name].flag} {value} is not known; give the backend {backend} one of {allowed}")
    return {**{name: option.default for name, option in known.items()}, **values}


class Devices:
    """The devices of a backend's ranks; this class describes the CPU, which computes eagerly.

    A backend for other devices has a subclass, which overrides the methods that differ. Commands call `findings` and
    `found` before torch is imported, so the module of a subclass imports torch in methods only.

    Attributes:
        type: type of the ``torch.device`` of models and batches. For types other than "cpu", `cpudist.optimize` applies
            autocast only.
        companions: required packages that are each built for one release of torch.
    """

    type: str = "cpu"
    companions: ClassVar[tuple[str, ...]] = ()

    def findings(self, environment: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
        """Report to `cpudist doctor` how the backend would work on this machine.

        Returns: For each finding its level, the result in one line, and the remedy (empty if none is needed).
        """
        return iter(())

    def found(self) -> str | None:
        """Return the accelerators of this machine that the backend can use, such as "2 TPU devices"; None for none."""
        return None

    def prepare(self, model: torch.nn.Module) -> None:
        """Prepare a model on the device before it is wrapped; a second call does nothing."""

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of `loader` on this rank's device."""
        return loader

    def end_step(self) -> None:
        """End a step: start the step's work on devices that compute lazily, without waiting for it."""

    def synchronize(self) -> None:
        """Wait until this rank's device has completed all its work."""

    def random_state(self) -> Any:
        """Return the state of the device's random generator, for a checkpoint; None if the CPU's generator is used."""
        return None

    def set_random_state(self, state: Any) -> None:
        """Restore the device's random generator from a result of `random_state`."""


class Backend(ABC):
    """A backend connects the ranks; its `start` creates `torch.distributed`'s default process group.

    The order of calls is `configure`, `unavailable`, `start`, then all others any number of times, then `stop`. The
    interface does not assume CPU tensors, one process per device, or gradients that are reduced by hooks. `devices`
    describes other devices, and `wrap` may return any model.

    Commands such as ``cpudist-train --help`` import the class before torch is imported; so do ranks, before they are
    pinned. The module of a backend from another package must therefore import torch in methods only.

    Attributes:
        options: the options of this backend; `configure` takes them.
        compressions: the schemes of `compression.SCHEMES` that the backend supports.
        configured: the values of all `options`, after `configure`.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    compressions: ClassVar[frozenset[str]] = frozenset()
    devices: ClassVar[Devices] = Devices()
    configured: Mapping[str, Any]

    def configure(self, **values: Any) -> None:
        """Set the `options` to the user's values.

        Raises:
            UserError: an option is unknown or lacks another one that it needs, or a value is not allowed.
        """
        self.configured = with_defaults(self.name, self.options, values)

    def unavailable(self) -> str | None:
        """Return why this process cannot use the backend, in one line that names the remedy; None if it can."""
        return None

    @abstractmethod
    def start(self, world: World, store: Store, timeout: float) -> None:
        """Connect the ranks of `world`. All ranks call this method; it returns or raises in bounded time.

        Args:
            world: this rank and the others; `world.backend` is not set yet.
            store: an empty store that all ranks share.
            timeout: limit for the start and for every later collective, in seconds.
        """

    @abstractmethod
    def stop(self) -> None:
        """Release everything; the process may then start a backend again."""

    def change_libraries(self, changes: Changes) -> None:  # noqa: B027 - most need nothing of the kind
        """Make other packages, such as accelerate, use this backend's devices during a job; called after `start`.

        Args:
            changes: sets environment variables and attributes of modules; the job undoes them at its end. For a module
                that the script may import later: ``changes.then(after_import(name, change))``.
        """

    @abstractmethod
    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model in a form whose gradients are averaged over all ranks.

        Args:
            model: the model, on this rank's device.
            options: the backend's own options, or the ones of `DistributedDataParallel` if the backend uses it.

        Raises:
            UserError: the backend cannot wrap this model, or takes no such options.
        """

    def ddp_options(self) -> dict[str, Any]:
        """Return the fastest options of `DistributedDataParallel`; Trainer wraps models itself and uses them."""
        return {}

    def compress(self, model: torch.nn.Module, scheme: str) -> None:  # noqa: B027 - only backends with `compressions`
        """Compress the gradients of a wrapped model by `scheme`; all ranks of its process group call it.

        With "auto", the ranks only check that all of them gave "auto"; the scheme is chosen later.

        Raises:
            UserError: the model's gradients cannot be compressed, or ranks differ in the scheme.
        """

    def compressed_bytes(self) -> tuple[int, int] | None:
        """Return the bytes of gradients before and after compression so far; None if none were compressed."""
        return None

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """Average `tensor`, of any shape, over all ranks; return it on the CPU in float64. Every rank calls it."""
        import torch
        import torch.distributed as dist

        mean = tensor.detach().cpu().to(torch.float64, copy=True)  # on the CPU: some devices lack float64
        dist.all_reduce(mean)
        return mean.div_(dist.get_world_size())

    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of all later collectives, in the default group and in groups that are created later.

        Raises:
            UserError: this backend cannot change its timeout after the start.
        """
        raise UserError(f"the timeout of the backend {self.name} cannot be changed; give it at the start")

    def transport(self) -> str | None:
        """Return the transport of the messages: "mpi", "ofi", "tcp", …; None before `start`."""
        return None

    def carriers(self) -> str | None:
        """Return what carries messages inside a host and between hosts, for the line at the start; None: unknown."""
        return self.transport()

    def details(self) -> dict[str, Any]:
        """Return more fields for the run record, such as library versions."""
        return {}

    def communication_seconds(self) -> float | None:
        """Return the seconds that this process has been blocked in communication; None: not measured.

        Any thread may call this at any time; it takes no lock that a blocked call holds.
        """
        return None

    def communicated_bytes(self) -> int | None:
        """Return the bytes that this process has communicated, counting each call's larger buffer; None: unknown."""
        return None

    def has_failed(self) -> bool:
        """Return whether communication has failed permanently, so that this process cannot shut down normally."""
        return False

    def calls(self) -> Calls | None:
        """Return this rank's communication at this moment; None: unknown.

        Any thread may call this at any time, also while another thread is blocked in a call. It takes milliseconds. If
        a call blocks inside a transport, as during the creation of a group, this returns None within 0.2 s.
        """
        return None

    def progress(self) -> list[tuple[str, int | None]] | None:
        """Return (group, sequence) of each group's last completed collective and of newer calls. Thread-safe."""
        calls = self.calls()
        return None if calls is None else [(call.group, call.sequence) for call in (*calls.finished, *calls.under_way)]
