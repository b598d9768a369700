"""DDP's buckets of gradients, on devices whose tensors share no memory.

DDP writes each gradient into its place in a bucket through a view. Here a write makes a new bucket out of the last one,
and each view keeps the one that its own write has made, until it is read again. What is kept is computed with the rest
of a graph: of ResNet-50's bucket of 94 MB there were 161.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from cpudist.changes import Changes

_models: WeakSet[DistributedDataParallel] = WeakSet()


def know_models(changes: Changes) -> None:
    """Note every model that is wrapped in DDP, by whomever, until `changes` are undone."""
    original = DistributedDataParallel.__init__

    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _models.add(self)

    changes.attribute(DistributedDataParallel, "__init__", init)


def keep_newest() -> None:
    """Have every gradient that is a view keep the newest bucket alone.

    With ``gradient_as_bucket_view=False`` gradients are no views, and those that DDP has are out of reach.
    """
    with torch.no_grad():
        for model in list(_models):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.clone()  # reading it is enough: nobody asks for the clone, so it is not computed
