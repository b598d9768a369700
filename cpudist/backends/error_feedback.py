"""Save the errors of compressed gradients in checkpoints (error feedback).

Schemes keep their errors by the buckets of DDP, which divides parameters differently after a restart. So a checkpoint
holds the errors by parameter. The first step after a restart is exact in all schemes, and adds them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_of: WeakKeyDictionary[torch.nn.Module, ErrorFeedback] = WeakKeyDictionary()


def of(model: torch.nn.Module) -> ErrorFeedback | None:
    """Return the error feedback of a model, as it was before it was wrapped; None where nothing is lost."""
    return _of.get(model)


def detach(model: torch.nn.Module) -> None:
    """Forget the error feedback of a model that is wrapped anew."""
    _of.pop(model, None)


def detach_all() -> None:
    """Forget all error feedback when a job ends."""
    _of.clear()


def keep_all(error: torch.Tensor) -> None:
    """Do nothing: each rank keeps all values of its error."""


def settle(
    errors: Mapping[int, torch.Tensor], group: Any, keep_own: Callable[[torch.Tensor], None] = keep_all
) -> dict[int, torch.Tensor]:
    """Return the errors of the averages over a group; all its ranks call this, and go on with the same errors.

    Args:
        errors: this rank's errors of the averages, by numbers that are the same on all ranks.
        keep_own: zeroes the part of an error that other ranks keep.
    """
    owners = torch.ones(1)
    keep_own(owners)
    dist.all_reduce(owners, group=group)
    settled = {}
    for number, error in sorted(errors.items()):
        dist.all_reduce(error, group=group)
        error /= float(owners)
        settled[number] = error.clone()
        keep_own(error)
    return settled


class ErrorFeedback:
    """The errors of one model's gradients.

    Args:
        hook: the communication hook of a scheme; it averages exactly in its first step.
        errors: this rank's errors, by the number of the bucket.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        hook: Callable[..., Any],
        state: Any,
        errors: Mapping[int, torch.Tensor],
        keep_own: Callable[[torch.Tensor], None] = keep_all,
    ) -> None:
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        self._group: Any = model.process_group
        self._errors, self._keep_own = errors, keep_own
        self._settled: dict[int, torch.Tensor] = {}
        self._buckets: dict[int, list[torch.Tensor]] = {}
        self._owed: dict[str, torch.Tensor] = {}  # added by the next step

        @functools.wraps(hook)  # DDP reads the types of its arguments, and the run record its name
        def adding(state: Any, bucket: Any) -> Any:
            self._buckets[bucket.index()] = bucket.parameters()
            if self._owed:
                self._add(bucket)
            return hook(state, bucket)

        model.register_comm_hook(state, adding)
        _of[model.module] = self

    def settle(self) -> None:
        """Agree on the errors, for `state_dict`; every rank calls it after the same step."""
        self._settled = settle(self._errors, self._group, self._keep_own)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the errors of the average gradients, by the names of their parameters, after `settle`."""
        state = dict(self._owed)
        for number, error in self._settled.items():
            parameters = self._buckets[number]
            parts = torch.split(error, [parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                state[self._names[parameter]] = part.view(parameter.shape)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next step add a checkpoint's errors instead of this job's."""
        for error in self._errors.values():
            error.zero_()
        self._owed = {name: state[name] for name in self._names.values() if name in state}

    def _add(self, bucket: Any) -> None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if (owed := self._owed.pop(self._names[parameter], None)) is not None:
                gradient.add_(owed)
