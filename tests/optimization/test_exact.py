"""A model that `cpudist.optimize` has made faster is the user's: whatever is done to it, it trains as under plain torch.

A small model is trained twice, by the same program: by torch alone, under `torch.autocast`, and optimized.
"""

import copy
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import cpudist
from cpudist.optimization import ipex, precision

pytestmark = pytest.mark.versions

Call = Callable[..., torch.Tensor]  # a model, and its inputs -> the loss
STEPS = 5


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These models are small; more threads wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Net(nn.Module):
    """An embedding, convolutions, a block and an output layer; forward takes targets and may call itself."""

    def __init__(self, uses: set[str]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(32, 16, sparse="sparse" in uses)
        self.bag = nn.EmbeddingBag(32, 16, sparse="sparse" in uses)
        self.convolutions = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16))
        self.out = nn.Linear(16, 32, bias=False)
        if "tie" in uses:
            self.out.weight = self.table.weight
        self.uses = uses

    def forward(self, ids: torch.Tensor, inputs: torch.Tensor | None = None) -> Any:
        """Return logits; with targets, the loss."""
        if inputs is not None:
            return functional.mse_loss(self(ids).float().mean((1, 2)), inputs - 1000)
        x = self.table(ids) + self.bag(ids)[:, None]
        x = x + self.convolutions(x[:, None]).view(x.shape)
        x = x + (checkpoint(self.block, x, use_reentrant=False) if "checkpointed" in self.uses else self.block(x))
        return self.out(x)


# Without "tie": a sparse embedding's gradient and an output layer's cannot be added.
USES = (
    "accumulate add average checkpointed clip copy freeze gradients load part pickle recompute scaler second sparse "
    "target tie"
).split()
OPTIMIZERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.02),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
}


def _batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(32, (8, 6), generator=generator), 1000.7 + torch.randn(8, generator=generator)


def _loss(call: Call, model: nn.Module, uses: set[str], number: int) -> torch.Tensor:
    ids, targets = _batch(number)
    if "target" in uses:
        return call(model, ids, targets)
    run = (lambda *inputs: checkpoint(call, *inputs, use_reentrant=False)) if "recompute" in uses else call
    return functional.cross_entropy(run(model, ids).float().flatten(0, 1), ids.flatten())


def _backward(loss: torch.Tensor, model: nn.Module, uses: set[str]) -> None:
    if "gradients" not in uses or "sparse" in uses:
        loss.backward()
        return
    updated = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter, gradient in zip(updated, torch.autograd.grad(loss, updated), strict=True):
        strange = gradient.t().contiguous().t() if gradient.dim() == 2 else gradient  # column by column
        parameter.grad = strange if parameter.grad is None else parameter.grad + strange


def _train(make: Callable[[nn.Module, Any], None], call: Call, kind: str, uses: set[str]) -> list[torch.Tensor]:
    """Return the loss of each step, the average's last one, and the parameters at the end."""
    model: Any = Net(uses)
    model.block[0].weight.requires_grad_("freeze" not in uses)
    optimizer = OPTIMIZERS[kind](model.parameters())
    make(model, optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)) if "average" in uses else None
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in uses)
    losses = []
    for step in range(STEPS):
        if step == 2:
            model, optimizer = _between_steps(model, optimizer, kind, uses)
        optimizer.zero_grad()
        for part in range(3 if "accumulate" in uses else 1):
            loss = _loss(call, model, uses, 10 * step + part)
            _backward(scaler.scale(loss), model, uses)
        if "clip" in uses and "sparse" not in uses:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        if average is not None:
            average.update_parameters(model)
    if average is not None:
        losses.append(_loss(call, average, uses, 99).detach())
    assert not torch.is_autocast_enabled("cpu")
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def _between_steps(model: Any, optimizer: Any, kind: str, uses: set[str]) -> tuple[Any, Any]:
    model.block[0].weight.requires_grad_()
    if "copy" in uses:
        model, optimizer = copy.deepcopy((model, optimizer))
    if "pickle" in uses:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        model = torch.load(file, weights_only=False)
    if "second" in uses or "pickle" in uses:
        optimizer = OPTIMIZERS[kind](model.parameters())
    if "load" in uses:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if "part" in uses:
        model.block.load_state_dict({name: value * 0.9 for name, value in model.block.state_dict().items()})
    if "add" in uses:
        model.block[3].weight.data += 1e-3
    return model, optimizer


def _oracle(kind: str, dtype: torch.dtype, uses: set[str]) -> list[torch.Tensor]:
    def call(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            return model(*inputs)

    return _train(lambda model, optimizer: None, call, kind, uses)


def _optimized(kind: str, dtype: torch.dtype, uses: set[str]) -> list[torch.Tensor]:
    def make(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        cpudist.optimize(model, optimizer, dtype, keep_memory=False)

    def call(model: nn.Module, *inputs: torch.Tensor) -> torch.Tensor:
        outputs = model(*inputs)
        assert outputs.dtype is torch.float32
        return outputs

    return _train(make, call, kind, uses)


@given(
    kind=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    uses=st.sets(st.sampled_from(USES), max_size=5),
)
@settings(max_examples=60)
def test_it_trains_as_under_torchs_autocast(kind: str, dtype: torch.dtype, uses: set[str]) -> None:
    if "sparse" in uses:
        uses -= {"tie", "clip"}
        kind = "SGD" if kind in ("AdamW", "momentum") else kind
    for ours, wanted in zip(_optimized(kind, dtype, uses), _oracle(kind, dtype, uses), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-3)
