"""One sharded parameter: each rank's rows, and how gradients and rows are communicated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from cpudist.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


class Shard:
    """A parameter and this rank's rows of it, in one memory.

    DTensor gives all ranks but the last ones equally many rows. Where the rows do not divide evenly, the parameter
    moves to memory with some rows more, so that collectives can work on it in place.

    Args:
        whole: the parameter, of any shape but ().
        mesh: the ranks, a mesh of one dimension.

    Attributes:
        whole: the module's parameter; ``whole.grad`` is what this rank alone has accumulated.
        own: the parameter for optimizers: a DTensor of the same shape, sharded by rows, with the reduced gradient.
        local: this rank's rows as a plain tensor of shape (rows, ...), for optimizers to compute with; rows may be 0.
        memory: all rows as a flat tensor, the output of an all-gather.
        chunk: this rank's part of `memory`, its input.

    Raises:
        UserError: the parameter has no dimensions.
    """

    def __init__(self, whole: torch.nn.Parameter, mesh: DeviceMesh) -> None:
        from torch.distributed.tensor import DTensor  # imported here: it takes a second, and most jobs do not need it
        from torch.distributed.tensor import Shard as Rows

        if whole.dim() == 0:
            raise UserError("shard_optimizer divides parameters by rows; make the one without dimensions torch.ones(1)")
        self.whole = whole
        self._group: Any = mesh.get_group()
        self._waits: DTensor | bool = False  # see `keep_for_later`
        if not any(whole.is_contiguous(memory_format=f) for f in _FORMATS if _fits(f, whole)):
            whole.data = whole.data.contiguous()
        count = whole.size(0)
        per_rank = -(-count // mesh.size())
        begin = mesh.get_local_rank() * per_rank
        self._rows = slice(min(begin, count), min(begin + per_rank, count))
        row = whole.numel() // max(count, 1)
        self._padded = per_rank * mesh.size() * row
        self._chunk = slice(begin * row, (begin + per_rank) * row)
        whole.data = self._with_room(whole.data)
        mine = whole.detach()[self._rows]
        self.local = torch.nn.Parameter(mine)
        shape, stride = whole.shape, whole.stride()
        rows = DTensor.from_local(mine, mesh, [Rows(0)], run_check=False, shape=shape, stride=stride)
        self.own = torch.nn.Parameter(rows)
        self._make: Any = DTensor
        self._spec = rows._spec
        self.memory = self._flat(whole.detach())
        self.chunk = self.memory[self._chunk]

    def give_gradient(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output and input of a reduce-scatter; `take_reduced` must be called after it.

        Returns:
            This rank's part of the flat gradient, shaped as `chunk`, and all of it, shaped as `memory`.

        Raises:
            UserError: the gradient is sparse.
        """
        gradient = self.whole.grad
        self.whole.grad = None
        if gradient is None:  # another rank has one
            gradient = torch.zeros_like(self.whole)
        if gradient.is_sparse:
            raise UserError(
                "shard_optimizer does not work with sparse gradients; leave it out, or sparse=True of the embedding"
            )
        if gradient.stride() != self.whole.stride():
            gradient = torch.empty_like(self.whole).copy_(gradient)
        self._gradient = self._with_room(gradient)
        memory = self._flat(self._gradient)
        return memory[self._chunk], memory

    def take_reduced(self, divisor: int) -> None:
        """Add the reduced gradient, divided by `divisor`, to the gradient of `own`."""
        mine = self._gradient[self._rows]
        del self._gradient
        if divisor > 1:
            mine.div_(divisor)
        if self.own.grad is None or self.own.grad is self._waits:
            self.own.grad = self._distributed(mine)
        else:
            self.own.grad.to_local().add_(mine)  # type: ignore[attr-defined]
        self._waits = False

    @property
    def waits(self) -> bool:
        """Whether a backward pass under no_sync has left a gradient that is not reduced."""
        return self._waits is not False

    def keep_for_later(self) -> None:
        """Give `own` a gradient that optimizers can set to None; called after a backward pass under no_sync."""
        if self.whole.grad is not None and not self.waits:
            self._waits = True
            if self.own.grad is None:
                # One zero, expanded: zeroing it in place fails, so it can be set to None only.
                self._waits = self._distributed(torch.zeros((), dtype=self.local.dtype).expand(self.local.shape))
                self.own.grad = self._waits

    def forget_if_zeroed(self) -> None:
        """Drop the accumulated gradient where `own.grad` has been set to None; called before a forward pass."""
        if self.waits and self.own.grad is None:
            self.whole.grad = None
            self._waits = False

    def rows_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of a tensor, or DTensor, of the parameter's shape; as a plain tensor like `local`."""
        if isinstance(tensor, self._make):
            rows: torch.Tensor = tensor.to_local()
            return rows
        return tensor[self._rows].clone()

    def whole_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensor of the parameter's shape, given this rank's rows, shaped as `local`; all ranks call it."""
        whole = self._with_room(torch.zeros_like(self.whole, dtype=rows.dtype))
        whole[self._rows] = rows
        memory = self._flat(whole)
        self._group.allgather_into_tensor_coalesced([memory], [memory[self._chunk]]).wait()
        return whole

    def _distributed(self, rows: torch.Tensor) -> DTensor:
        """Make a DTensor like `own` of these rows; `DTensor.from_local` would be slow."""
        made: DTensor = self._make(rows, self._spec, requires_grad=False)
        return made

    def _with_room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor`, of the parameter's strides, in memory that reaches to the end of the last chunk."""
        if self._padded == tensor.numel():
            return tensor
        room = tensor.new_zeros(self._padded)
        return room.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.as_strided((self._padded,), (1,))


def _fits(memory_format: torch.memory_format, tensor: torch.Tensor) -> bool:
    return tensor.dim() == {torch.channels_last: 4, torch.channels_last_3d: 5}.get(memory_format, tensor.dim())
