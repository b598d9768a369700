"""The shares that all ranks of a job have agreed on, and the batches that their loops take."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch.distributed import Store

from cpudist.balance.weights import sums_over, tensors_in, weighted
from cpudist.errors import UserError
from cpudist.patching.patch import Patch, adjusted, apply
from cpudist.patching.undo import Changes

_PERIOD = 10  # Shares may change every 10 batches.
_KEPT = 100  # The shares of a period stay in the store for 100 periods; by then every rank has read them.
_CHOSEN = "balance/chosen"


@dataclass
class Batch:
    """A batch of this rank: its number of samples, and the weight of its gradient in the average of all ranks."""

    samples: int
    weight: float
    weighted: bool = False  # whether a model has applied the weight
    stepped: bool = False  # whether an optimizer has made a step since the loop took the batch


class Balance:
    """The shares of a job's ranks. Each rank has a `Balance`; rank 0 chooses the shares."""

    def __init__(self, rank: int, ranks: int, store: Store, changes: Changes) -> None:
        self.rank, self.ranks = rank, ranks
        self.follows_speeds = False  # whether shares follow the ranks' speeds; otherwise they stay equal
        # On rank 0 the newest shares, in any unit. Samplers apply them later, on all ranks from the same batch on.
        self.chosen: tuple[float, ...] = (1.0,) * ranks
        self.per_step = 0  # samples of all ranks in a step, or in a loop's largest batch; 0: not known yet
        self.least, self.computed = 1, 0  # smallest share of a step; samples computed by this rank so far
        self._store, self._changes = store, changes
        self._agreed: dict[str, tuple[int, tuple[float, ...]]] = {}  # by sampler: the newest period and its shares
        self._models: WeakSet[torch.nn.Module] = WeakSet()
        self._samplers = 0
        self._batch: Batch | None = None
        self._other_since = False  # whether the loop has taken a batch of another loader since `_batch`

    def follow_speeds(self, begin: str | None = None) -> None:
        """Let shares follow the ranks' speeds; `begin` has the first ones, as "0.7,0.3" (None: equal shares)."""
        self.follows_speeds = True
        given = tuple(map(float, begin.split(","))) if begin else ()
        if len(given) == self.ranks:
            self.chosen = given

    def number_sampler(self) -> str:
        """Return a name for a new sampler: the same on all ranks, as they make their samplers in the same order."""
        self._samplers += 1
        if self._samplers == 1 and self.ranks > 1:
            apply(PATCHES, self, self._changes)
            for model in self._models:
                self._apply_weights(model)
        return str(self._samplers)

    def agreed(self, sampler: str, number: int) -> tuple[float, ...]:
        """Return the shares for batch `number` of a sampler.

        The first rank that reaches a period fixes the shares of all ranks for it: the newest that rank 0 has
        published. So no rank waits for another, although loaders prefetch and reach a period at different times.
        """
        period = number // _PERIOD
        known, shares = self._agreed.setdefault(sampler, (-1, self.chosen))
        if period != known and self.follows_speeds and self.ranks > 1:
            key = f"balance/{sampler}/{{}}"
            if self.rank == 0:
                self._store.set(_CHOSEN, json.dumps(self.chosen))
                self._store.delete_key(key.format(period - _KEPT))
            newest = self._store.get(_CHOSEN).decode() if self._store.check([_CHOSEN]) else json.dumps(self.chosen)
            shares = tuple(json.loads(self._store.compare_set(key.format(period), "", newest)))
            self._agreed[sampler] = period, shares
        return shares

    def take(self, batch: Batch) -> None:
        """Note that the loop has taken `batch`, whose weight applies to forward passes until the next batch."""
        self._batch, self._other_since = batch, False

    def take_other(self) -> None:
        """Note that the loop has taken a batch of a loader with equal shares."""
        self._other_since = True
        if self._batch and self._batch.weighted and self._batch.stepped:
            self._batch = None  # the loop no longer needs this batch

    def end_step(self, _optimizer: Any) -> None:
        """Note an optimizer's step; raise UserError if no model has applied the weight of the batch."""
        batch = self._batch
        if batch and batch.weight != 1 and not batch.weighted:
            why = f"an optimizer step used a batch of {batch.samples} samples without its weight in the average"
            raise UserError(f"{why}; wrap the model by cpudist.wrap and call the wrapped one")
        if batch:
            batch.stepped = True

    def check_loss(self, given: dict[str, Any]) -> None:
        """Raise UserError if the autograd graph shows that the loss of a weighted batch is a sum over its samples.

        `given` has the arguments of `torch.autograd.backward`.
        """
        batch, loss = self._batch, given["tensors"] if given.get("grad_tensors") is None else None
        if batch and batch.weighted and isinstance(loss, torch.Tensor) and sums_over(loss, batch.samples):
            remedy = "divide it by the number of samples"
            raise UserError(f"the loss is a sum over the samples of a batch, and cpudist.shares needs a mean; {remedy}")

    def of_all_ranks(self, count: int) -> int:
        """Return a count, as of tokens, over all ranks: `count` divided by this rank's part of the newest batch."""
        return round(count * self.ranks / (self._batch.weight if self._batch and self._batch.weight else 1))

    def add_model(self, model: torch.nn.Module) -> None:
        """Apply the weights of batches to the gradients of `model`, once there is a sampler."""
        if self.ranks > 1:
            self._models.add(model)
            if self._samplers:
                self._apply_weights(model)

    def _apply_weights(self, model: torch.nn.Module) -> None:
        def weigh(_: Any, args: Any, kwargs: Any, outputs: Any) -> Any:
            trains = model.training and torch.is_grad_enabled()
            weight = self._weight(tensors_in([args, kwargs])) if trains else 1.0
            return outputs if weight == 1 else weighted(outputs, weight)

        model.register_forward_hook(torch.compiler.disable(weigh), with_kwargs=True)  # type: ignore[no-untyped-call]

    def _weight(self, inputs: Iterable[torch.Tensor]) -> float:
        """Return the weight of the batch in a model's inputs.

        If a loop takes batches ahead of their use, at least one rank raises UserError as soon as two batches differ in
        the number of samples; then no rank makes the step.
        """
        batch, shapes = self._batch, [tuple(tensor.shape) for tensor in inputs if tensor.dim()]
        matches = batch is not None and (not shapes or any(batch.samples in shape[:2] for shape in shapes))
        if not self._agreed or (self._other_since and (batch is None or not matches or batch.weight == 1)):
            return 1.0
        if batch is None or self._other_since or not matches:
            got = "tensors of " + ", ".join(map(str, shapes[:2])) if shapes else "no tensor"
            newest = f"the newest batch has {batch.samples} samples" if batch else "no DataLoader has it"
            remedy = "take each batch, when it is computed, from a DataLoader with the batch_sampler cpudist.shares"
            raise UserError(f"the model gets {got}, whose weight is not known ({newest}); {remedy}")
        if not batch.weighted and batch.weight:
            self.computed += batch.samples
            self.per_step = max(self.per_step, round(self.ranks * batch.samples / batch.weight))
        batch.weighted = True
        return batch.weight


PATCHES = (
    Patch(
        "torch.autograd:backward",
        "a loss that is a sum is refused in loops of cpudist.shares, whose weights are those of means",
        lambda backward, balance: adjusted(backward, balance.check_loss),
        "tensors, grad_tensors, ...",
    ),
)
