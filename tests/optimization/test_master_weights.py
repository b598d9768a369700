"""bfloat16 parameters with float32 master weights: what users do with a model and its optimizer between two steps."""

import copy
import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import cpudist
from cpudist import UserError

pytestmark = pytest.mark.versions

IMAGES = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LIMITS = -0.125, 0.125

Pair = tuple[torch.nn.Module, torch.optim.Optimizer]


def _optimized(model: torch.nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Pair:
    return cpudist.optimize(model, optimizer, torch.bfloat16, **{"ipex": False, "keep_memory": False, **options})


def _made(kind: Any = torch.optim.SGD, lr: float = 0.1, seed: int = 0, **options: Any) -> Pair:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3))
    return _optimized(model, kind(model.parameters(), lr=lr), **options)


def _steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int = 1) -> list[float]:
    losses = []
    for _ in range(number):
        optimizer.zero_grad()
        loss = (model(IMAGES) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _far(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def _stored(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, _stored])
def test_a_copy_is_a_model_of_its_own(copied: Callable[..., torch.nn.Module], autocast: bool) -> None:
    model, optimizer = _made(autocast=autocast)
    _steps(model, optimizer, 3)
    optimizer.zero_grad()
    other = copied(model)
    assert torch.equal(other(IMAGES), model(IMAGES))
    assert _far(other.state_dict(), model.state_dict()) == 0
    other(IMAGES).sum().backward()
    assert all(p.grad is not None for p in other.parameters())
    assert all(p.grad is None for p in model.parameters())
    before = _state(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(IMAGES).any()
    assert not any(value.any() for value in other.state_dict().values())
    assert _far(model.state_dict(), before) == 0
    assert inspect.signature(other.forward) == inspect.signature(model.forward)


def test_a_copy_trains_with_master_weights_of_its_own() -> None:
    model, optimizer = _made(lr=1e-4)
    other = copy.deepcopy(model)
    other, again = _optimized(other, torch.optim.SGD(other.parameters(), lr=1e-4))
    before = _state(model)
    losses = _steps(other, again, 20)
    assert _far(model.state_dict(), before) == 0
    assert _steps(model, optimizer, 20) == losses
    assert _far(model.state_dict(), other.state_dict()) == 0


def test_an_average_of_parameters_is_what_its_state_says() -> None:
    model, optimizer = _made()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    wanted = _state(model)
    for step in range(10):
        _steps(model, optimizer)
        average.update_parameters(model)
        now = _state(model)
        wanted = {name: (wanted[name] + now[name]) / 2 if step else now[name] for name in now}
    state = average.module.state_dict()
    assert _far(state, wanted) < 0.01 < _far(wanted, now), "as precise as bfloat16"
    assert all(torch.equal(p.float(), state[name]) for name, p in average.module.named_parameters())
    assert torch.allclose(average(IMAGES), average.module(IMAGES))
    assert not torch.equal(average(IMAGES), model(IMAGES))


def test_an_average_of_states_is_in_float32() -> None:
    """With 0.999 bfloat16 would stay where it was."""
    model, optimizer = _made()
    average = copy.deepcopy(model)
    wanted = _state(model)
    for _ in range(50):
        _steps(model, optimizer)
        with torch.no_grad():
            for name, value in average.state_dict().items():
                value.lerp_(model.state_dict()[name], 0.001)
                wanted[name].lerp_(model.state_dict()[name], 0.001)
    assert _far(average.state_dict(), wanted) == 0
    outputs = average(IMAGES)
    assert all(torch.equal(p, wanted[name].bfloat16()) for name, p in average.named_parameters())
    loaded, _ = _made(seed=1)
    loaded.load_state_dict(wanted)
    assert torch.equal(outputs, loaded(IMAGES))


def test_the_optimizers_parameters_are_the_models() -> None:
    model, optimizer = _made()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    assert list(map(id, parameters)) == list(map(id, model.parameters()))
    before = _state(model)
    (1000 * model(IMAGES).sum()).backward()
    assert torch.nn.utils.clip_grad_norm_(parameters, 0.01) > 100
    optimizer.step()
    moved = sum(float((before[name] - value).square().sum()) for name, value in model.state_dict().items()) ** 0.5
    assert moved == pytest.approx(0.1 * 0.01, rel=0.02)
    assert list(map(id, optimizer.param_groups[0]["params"])) == list(map(id, parameters))
    optimizer.zero_grad(set_to_none=False)
    assert not any(p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("of", "change"),
    [
        ("parameters", lambda tensor: tensor.clamp_(*LIMITS)),
        ("parameters", lambda tensor: tensor.data.clamp_(*LIMITS)),
        ("parameters", lambda tensor: setattr(tensor, "data", tensor.data.clamp(*LIMITS))),
        ("state", lambda tensor: tensor.clamp_(*LIMITS)),
    ],
)
def test_changes_in_place_last(of: str, change: Callable[[torch.Tensor], object]) -> None:
    model, optimizer = _made(lr=1e-4)
    _steps(model, optimizer)
    wanted = {name: value.clamp(*LIMITS) for name, value in _state(model).items()}
    with torch.no_grad():
        for tensor in model.parameters() if of == "parameters" else model.state_dict().values():
            change(tensor)
    assert _far(model.state_dict(), wanted) == 0, "in full precision where nothing was changed"
    model(IMAGES)
    assert all(torch.equal(p, wanted[name].bfloat16()) for name, p in model.named_parameters())
    _steps(model, optimizer, 3)
    assert 0 < _far(model.state_dict(), wanted) < 2e-3


def test_a_change_outlasts_the_next_step_without_a_look_at_the_state() -> None:
    model, optimizer = _made(lr=1e-4)
    with torch.no_grad():
        model[2].weight.fill_(5.0)
    _steps(model, optimizer)
    assert model.state_dict()["2.weight"].sub(5).abs().max() < 0.01
    assert model[2].weight.sub(5).abs().max() < 0.05


def test_a_group_that_is_added_has_master_weights() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    model, optimizer = _optimized(model, torch.optim.SGD(model[1].parameters(), lr=1e-5))
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 1e-5})
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [model[1].weight]})
    before = _state(model)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 8))[0, 0].backward()
        optimizer.step()
    # A step of a bias is far below what bfloat16 resolves around 0.1.
    moved = {name: value - before[name] for name, value in model.state_dict().items()}
    torch.testing.assert_close(moved["0.bias"], -1e-4 * before["1.weight"][0], rtol=0.02, atol=1e-6)
    torch.testing.assert_close(moved["1.bias"], torch.tensor([-1e-4, 0.0, 0.0]), rtol=0.02, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad])
@pytest.mark.parametrize("ipex", [False, None])
def test_training_goes_on_from_its_states_bit_by_bit(kind: Any, ipex: bool | None) -> None:
    model, optimizer = _made(kind, 1e-3, ipex=ipex)
    _steps(model, optimizer, 5)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    tensors = [value for state in saved[1]["state"].values() for value in state.values() if torch.is_tensor(value)]
    assert {value.dtype for value in [*saved[0].values(), *tensors]} == {torch.float32}
    losses = _steps(model, optimizer, 5)
    again = _made(kind, 1e-3, seed=1, ipex=ipex)
    with pytest.raises(ValueError, match="parameter group"):
        again[1].load_state_dict({"state": {}, "param_groups": []})
    again[0].load_state_dict(saved[0])
    again[1].load_state_dict(saved[1])
    assert list(map(id, again[1].param_groups[0]["params"])) == list(map(id, again[0].parameters()))
    assert _steps(*again, 5) == losses
    assert _far(again[0].state_dict(), model.state_dict()) == 0


def test_an_optimizer_that_has_taken_steps_keeps_its_state() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _steps(model, optimizer, 3)
    average = optimizer.state[model.weight]["exp_avg"].clone()
    model, optimizer = _optimized(model, optimizer)
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], average)
    _steps(model, optimizer)
    assert optimizer.state[model.weight]["step"] == 4
    assert len(optimizer.state) == 2


def test_tied_parameters_stay_tied() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model, optimizer = _optimized(model, torch.optim.AdamW(model.parameters()))
    for each in (model, copy.deepcopy(model)):
        state = each.state_dict()
        assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()
        assert each[0].weight is each[1].weight
    assert len(optimizer.param_groups[0]["params"]) == 3


def test_what_cannot_be_right_is_refused() -> None:
    model, optimizer = _made()
    with pytest.raises(UserError, match="leave assign out"):
        model.load_state_dict(model.state_dict(), assign=True)

    class Outer(torch.optim.SGD):
        optim = optimizer

    with pytest.raises(UserError, match=r"Outer updates parameters by another optimizer; .*autocast=True"):
        _optimized(model, Outer(model.parameters()))
