"""A model that `cpudist.optimize` has made faster trains as under torch's autocast, whatever a user does with it.

A small model is trained twice, by the same program: by torch alone, under `torch.autocast`, and optimized.
"""

import copy
import inspect
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
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
from cpudist.optimization import kernels, operators, precision

pytestmark = pytest.mark.versions

Call = Callable[..., torch.Tensor]  # a model, and its inputs -> the loss
STEPS = 5


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """The model is small; more threads wait for each other most of the time. Linear layers are computed as on AMX."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "_copies", lambda: True)
        yield
    torch.set_num_threads(threads)


class _Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + weight.t()


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
        if "hook" in uses:
            self.block[0].weight.register_hook(lambda gradient: 2 * gradient)
            self.block[3].register_full_backward_hook(lambda _, gradients, __: (gradients[0] / 2,))
        if "normed" in uses:
            nn.utils.parametrizations.weight_norm(self.block[0])
        if "symmetric" in uses:
            nn.utils.parametrize.register_parametrization(self.block[3], "weight", _Symmetric())
        self.uses = uses

    def forward(self, ids: torch.Tensor, inputs: torch.Tensor | None = None) -> Any:
        """Return logits; with targets, the loss."""
        if inputs is not None:
            return functional.mse_loss(self(ids).float().mean((1, 2)), inputs - 1000)
        x = self.table(ids) + self.bag(ids)[:, None]
        x = x + self.convolutions(x[:, None]).view(x.shape)
        x = x + (checkpoint(self.block, x, use_reentrant=False) if "checkpointed" in self.uses else self.block(x))
        return self.out(x)


USES = ["accumulate", "add", "average", "checkpointed", "clip", "copy", "freeze", "functional", "gradients"]
USES += [
    "hook",
    "late",
    "load",
    "normed",
    "symmetric",
    "part",
    "pickle",
    "recompute",
    "scaler",
    "second",
    "sparse",
    "target",
    "tie",
]
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
    if "functional" in uses:
        own = model, dict(model.named_parameters())
        model = partial(lambda own, *inputs: torch.func.functional_call(*own, inputs), own)
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
    if "late" not in uses:
        make(model, optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)) if "average" in uses else None
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in uses)
    losses = []
    for step in range(STEPS):
        if step == 2:
            model, optimizer = _between_steps(model, optimizer, kind, uses)
            if "late" in uses:
                make(model, optimizer)
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


@given(
    kind=st.sampled_from(sorted(OPTIMIZERS)),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    uses=st.sets(st.sampled_from(USES), max_size=5),
)
@settings(max_examples=40)
def test_it_trains_as_under_torchs_autocast(kind: str, dtype: torch.dtype, uses: set[str]) -> None:
    if dtype is torch.float16:
        uses |= {"scaler"}
    if "late" in uses:
        dtype = torch.float32  # as the steps before
    if uses & {"hook", "normed", "symmetric"}:
        uses -= {"pickle", "freeze"}  # torch refuses them
    if "sparse" in uses:
        uses -= {"tie", "clip"}  # torch adds no sparse gradient to a dense one, and cannot clip it
        kind = "SGD" if kind == "AdamW" else kind  # which takes no sparse gradients

    def plain(model: Any, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            return model(*inputs)

    def optimized(model: Any, *inputs: torch.Tensor) -> torch.Tensor:
        outputs = model(*inputs)
        assert outputs.dtype is torch.float32
        return outputs

    with pytest.MonkeyPatch.context() as patch:  # a CPU without float16 arithmetic emulates it
        patch.setattr(precision, "check", lambda dtype: None)
        ours = _train(partial(cpudist.optimize, dtype=dtype, keep_memory=False), optimized, kind, uses)
    wanted = _train(lambda model, optimizer: None, plain, kind, uses)
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


@dataclass(frozen=True)
class Held:
    rest: list[torch.Tensor]


class Tree(nn.Module):
    """Its forward pass calls itself, and shows what it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor, depth: int = 3) -> Any:
        """Return a dictionary of tensors, with one in a dataclass and one in a generator."""
        self.seen.append((branch := self.branch(x)).dtype)
        below = self(branch, depth - 1)["sum"] if depth else x
        held = {"held": Held([branch]), "made": (each for each in [[branch]])}
        return {"sum": branch + below, "ids": torch.arange(3), "exact": x.double(), **held}


def test_a_forward_pass_within_itself_and_in_other_threads() -> None:
    """Also one that fails leaves autocast off."""
    model, _ = cpudist.optimize(Tree(), None, torch.bfloat16, keep_memory=False)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    wanted = model(x)["sum"]
    with ThreadPoolExecutor(3) as threads:
        found = threads.map(lambda _: (model(x)["sum"], torch.is_autocast_enabled("cpu")), range(60))
    assert all(torch.equal(output, wanted) and not on for output, on in found)
    assert set(model.seen) == {torch.bfloat16}
    *tensors, held, ((made,),) = model(x).values()
    found = [tensor.dtype for tensor in (*tensors, *held.rest, made)]
    assert found == [torch.float32, torch.int64, torch.float64, torch.float32, torch.float32]
    with pytest.raises(RuntimeError):
        model(torch.ones(4, 9))
    assert not torch.is_autocast_enabled("cpu")
    assert model.branch(x).dtype is torch.float32, "a part that is called by itself"
    assert inspect.signature(model.forward) == inspect.signature(Tree().forward)


def test_a_step_that_raises_leaves_nothing_fused_in_the_state() -> None:
    model, optimizer = cpudist.optimize(linear := nn.Linear(2, 2), torch.optim.SGD(linear.parameters()), ipex=False)
    model(torch.ones(1, 2)).sum().backward()
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = "none"
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises((TypeError, RuntimeError, AttributeError)):
        optimizer.step()
    assert not any(group["fused"] for group in optimizer.state_dict()["param_groups"])


def test_the_newest_type_counts() -> None:
    model: Any = Tree()
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16, torch.bfloat16, torch.float32):
        cpudist.optimize(model, None, dtype, keep_memory=False)
        model.seen.clear()
        model(torch.ones(4, 8))
        assert set(model.seen) == {dtype}


def test_compiled_it_computes_the_same() -> None:
    model, _ = cpudist.optimize(nn.Sequential(nn.Linear(8, 8), nn.GELU()), None, torch.bfloat16, ipex=False)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    outputs = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    outputs.sum().backward()
    gradient, model[0].weight.grad = model[0].weight.grad, None
    model(x).sum().backward()
    assert torch.equal(outputs, model(x))
    torch.testing.assert_close(gradient, model[0].weight.grad)


def test_a_scaler_scales_once_any_model_of_the_job_is_in_float16(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "check", lambda dtype: None)
    monkeypatch.setattr(kernels, "dtypes", set())  # of the models of earlier tests
    assert not cpudist.scaler().is_enabled()
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        cpudist.optimize(nn.Linear(2, 2), None, dtype, keep_memory=False)
        assert cpudist.scaler().is_enabled()
    cpudist.shutdown()
    cpudist.init("gloo")
    assert not cpudist.scaler().is_enabled(), "another job"
