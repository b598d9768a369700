"""What cpudist asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store


@dataclass(frozen=True)
class Seat:
    """Where a backend finds itself: its rank, the job's size, and the store through which the ranks can meet."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    store: Store
    timeout: float


class Backend(ABC):
    """One way for ranks to compute together.

    The order of calls is `unavailable`, `start`, then `device`, `wrap` and `step` as often as wanted, then `stop`.
    Nothing here assumes CPU tensors, one process per device, or gradients that are reduced by hooks: a backend that
    compiles whole steps or shards one program over devices fits too.
    """

    name: ClassVar[str]

    def unavailable(self) -> str | None:
        """Why this process cannot use the backend, in one line that names the remedy; None when it can."""
        return None

    @abstractmethod
    def start(self, seat: Seat) -> None:
        """Make the job's default process group. All ranks call it; it is bounded by ``seat.timeout`` seconds."""

    @abstractmethod
    def device(self) -> torch.device:
        """The device of this rank."""

    @abstractmethod
    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Make the model's gradients agree across ranks."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the gradients of a backward pass."""
        optimizer.step()

    def ddp_options(self) -> dict[str, Any]:
        """What suits `DistributedDataParallel` on this backend where somebody else wraps the model, as Trainer does."""
        return {}

    def set_timeout(self, seconds: float) -> None:
        """Bound every collective from now on, in the default group and in those made later."""
        raise UserError(f"the timeout of the backend {self.name} cannot be changed; give it at the start")

    def transport(self) -> str | None:
        """What carries the messages: "mpi", "ofi", "tcp", …; None before `start`."""
        return None

    def details(self) -> dict[str, str]:
        """More for the run record: library versions and the like."""
        return {}

    def communication_seconds(self) -> float | None:
        """Seconds for which this process has been blocked in communication; None where that is not measured."""
        return None

    @abstractmethod
    def stop(self) -> None:
        """Release everything; the process may go on without a process group."""
