"""Local steps: outer steps and what surrounds them, with this process as one host of two that agree."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cpudist
from cpudist import job
from cpudist.backends import measured
from cpudist.backends.compression import check_outer, check_sync_every
from cpudist.errors import UserError
from cpudist.optimization import local_steps, master_weights
from cpudist.optimization.outer_step import SHORT, OuterStep, flat
from cpudist.optimization.rounds import Rounds

pytestmark = pytest.mark.versions


def start_as_one_of_two() -> None:
    cpudist.init("gloo", pin=False)
    running = job.require()
    running.world = replace(running.world, node_count=2)
    running.communication.world = running.world


@pytest.fixture
def two_hosts() -> Iterator[None]:
    """A job of this process alone that believes in a second host."""
    start_as_one_of_two()
    yield
    cpudist.shutdown()


def made(outer: str = "nesterov", every: int | str = 3) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    model = cpudist.wrap(plain, sync_every=every, outer=outer)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def without_rate() -> tuple[Any, torch.optim.Optimizer]:
    model, optimizer = made()
    optimizer.param_groups[0]["lr"] = None  # as in transformers' Adafactor, which finds its own
    return model, optimizer


def rounds_of(model: Any) -> Rounds:
    local = local_steps.of(model.module)
    assert local is not None
    return local.rounds


def train(model: Any, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        model(batch).square().mean().backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()


def vector(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("every", [1, 4])
def test_outer_steps_are_those_of_torchs_sgd(every: int) -> None:
    """The gradient of an outer step is the sum of K local steps; the step is made K/2 steps later.

    An independent SGD says where the outer steps lead, and a copy that trains alone how far each local step goes.
    """
    model, optimizer = made(every=every)
    alone, own = made("none", every=64)
    outer = torch.nn.Parameter(vector(model))
    sgd = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    sent, due = outer.detach().clone(), 0
    for step in range(1, 3 * every + 1):
        torch.nn.utils.vector_to_parameters(vector(model), alone.parameters())
        own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        own.param_groups[0]["lr"] = 0.1 / 7
        train(alone, own, step, step + 1)
        train(model, optimizer, step, step + 1)
        expected = vector(alone)
        if step % every == 0:
            outer.grad, sent, due = outer.detach() - expected, expected, step + every // 2
        if step == due:
            sgd.step()
            expected = outer.detach() + (expected - sent)
        torch.testing.assert_close(vector(model), expected, rtol=1e-5, atol=1e-6)


def test_outer_steps_go_as_far_as_full_steps() -> None:
    """Momentum, which makes seven steps of one in the long run, is made up for by shorter local steps."""
    outer = OuterStep("nesterov")
    outer.parameters = torch.zeros(3)
    for _ in range(100):
        before = outer.parameters.clone()
        outer.step(torch.full((3,), -SHORT))
    torch.testing.assert_close(outer.parameters - before, torch.ones(3), rtol=1e-3, atol=0)


@pytest.mark.usefixtures("two_hosts")
def test_only_the_step_itself_is_shortened() -> None:
    """Schedulers, logs and checkpoints see the learning rate of the user."""
    model, optimizer = made()
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda one, *_: seen.append(one.param_groups[0]["lr"]))
    train(model, optimizer, 0, 4)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    train(model, optimizer, 4, 5)
    assert seen == pytest.approx([0.1 / 7] * 6)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.usefixtures("two_hosts")
def test_steps_are_made_while_an_exchange_is_under_way() -> None:
    """A rank waits for an average once, at the step where its outer step is due."""
    waited: list[int] = []
    model, optimizer = made(every=4)
    rounds = rounds_of(model)
    begin = rounds._exchange._averaging.begin
    late = lambda moved: (begin(moved)(), lambda: waited.append(step))[1]  # noqa: E731
    rounds._exchange._averaging = SimpleNamespace(begin=late, residual=None)  # type: ignore[assignment]
    for step in range(10):
        train(model, optimizer, step, step + 1)
    assert waited == [5, 9]
    assert rounds.ahead() == 4, "the next one begins after 2 more steps, and ends 2 steps later"
    train(model, optimizer, 10, 12)
    step = 12
    cpudist.shutdown()
    assert waited == [5, 9, 12], "the job does not end with calls in flight"


def test_memory_serves_again_where_it_fits() -> None:
    tensors, memory = [torch.arange(6.0).view(2, 3), torch.ones(4)], torch.empty(10)
    assert flat(tensors, memory) is memory
    assert memory.tolist() == [0, 1, 2, 3, 4, 5, 1, 1, 1, 1]
    for others in (tensors[:1], [tensor.double() for tensor in tensors]):
        made_anew = flat(others, memory)
        assert made_anew.dtype == others[0].dtype
        assert len(made_anew) == sum(map(torch.numel, others))
    assert len(memory) == 10


@pytest.mark.usefixtures("two_hosts")
def test_plain_averaging_of_one_host_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = made("none", every=2)
    apart, other = made("none", every=64)
    train(model, optimizer, 0, 5)
    train(apart, other, 0, 5)
    torch.testing.assert_close(vector(model), vector(apart), rtol=1e-5, atol=1e-6)
    outer = job.require().record.as_dict("running")["gradients"]
    assert (outer["outer"], outer["outer_steps"], outer["compress"]) == ("none", 2, "none")
    capsys.readouterr()
    for _ in range(2):
        model.state_dict()
    assert capsys.readouterr().err.count("this state_dict is that of one host") == 1


@pytest.mark.usefixtures("two_hosts")
def test_a_compiled_model_synchronizes_before_an_evaluation() -> None:
    model, optimizer = made()
    compiled = torch.compile(model, backend="aot_eager")
    for first in (0, 1):
        train(compiled, optimizer, first, first + 1)
        assert rounds_of(model).apart
        compiled.eval()(torch.ones(2, 4))
        assert not rounds_of(model).apart
        compiled.train()


@pytest.mark.usefixtures("two_hosts")
def test_evaluation_and_saving_synchronize_and_a_checkpoint_goes_on_exactly(tmp_path: Path) -> None:
    model, optimizer = made()
    rounds = rounds_of(model)
    train(model, optimizer, 0, 1)
    model.eval()(torch.ones(2, 4))
    assert (rounds.apart, model.train().training) == (False, True)
    train(model, optimizer, 1, 4)
    assert rounds._exchange.under_way
    cpudist.save(tmp_path / "saved", model=model, optimizer=optimizer)
    assert (rounds.apart, rounds._exchange.under_way) == (False, False)
    train(model, optimizer, 4, 12)
    again, other = made()
    train(again, other, 0, 3)
    cpudist.load(tmp_path / "saved", model=again, optimizer=other)
    assert not rounds_of(again)._exchange.under_way, "what was under way is of another training"
    train(again, other, 4, 12)
    assert torch.equal(vector(again), vector(model))
    again.load_state_dict(model.state_dict())
    assert not rounds_of(again).apart, "what was loaded is on all ranks"
    fresh, third = made("none")  # another outer step takes no momentum
    cpudist.load(tmp_path / "saved", model=fresh, optimizer=third)
    assert local_steps.of(fresh.module).state_dict()["momentum"] is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("outer", "exchanges", "warns"), [("nesterov", 49, True), ("nesterov", 50, False), ("none", 1, False)]
)
def test_a_training_too_short_for_momentum_is_said(
    outer: str, exchanges: int, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exchanges before a restart count."""
    start_as_one_of_two()
    model, optimizer = made(outer, every=1)
    train(model, optimizer, 0, 1)
    cpudist.save(tmp_path / "saved", model=model, optimizer=optimizer)
    again, other = made(outer, every=1)
    cpudist.load(tmp_path / "saved", model=again, optimizer=other)
    train(again, other, 1, exchanges)
    cpudist.shutdown()
    assert (f"exchange {exchanges} times" in capsys.readouterr().err) == warns


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize(("steps", "warns"), [(399, 1), (400, 0)])
def test_it_is_said_before_where_the_number_of_steps_is_known(
    steps: int, warns: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = made(every=8)
    local = local_steps.of(model.module)
    assert local is not None
    local.expect(steps)
    assert capsys.readouterr().err.count("exchange 49 times") == warns
    train(model, optimizer, 0, 12)
    local.finish()
    assert capsys.readouterr().err.count("exchange 1 times") == 1 - warns, "once"


@pytest.mark.usefixtures("two_hosts")
def test_bfloat16_parameters_follow_their_master_weights() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    plain, optimizer = cpudist.optimize(plain, optimizer, dtype=torch.bfloat16)
    model, weights = cpudist.wrap(plain, sync_every=2), master_weights.of(plain)
    for _ in range(3):
        before = [master.detach().clone() for _, master in weights]
        model(torch.ones(2, 32)).square().mean().backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()
    assert weights
    for (low, master), old in zip(weights, before, strict=True):
        assert torch.equal(low, master.to(torch.bfloat16))
        assert not torch.equal(master, old)


@pytest.mark.usefixtures("two_hosts")
def test_auto_measures_two_exchanges_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer = made(every="auto")
    rounds = rounds_of(model)
    train(model, optimizer, 0, 7)
    assert rounds.every is None
    train(model, optimizer, 7, 8)
    assert 1 <= (rounds.every or 0) <= 64
    assert f"from now on hosts exchange after every {rounds.every} steps" in capsys.readouterr().err
    assert job.require().record.outer["sync_every"] == rounds.every


@pytest.mark.parametrize(
    ("step", "exchange", "own", "every"),
    [(2.0, 0.8, 0.01, 2), (1.0, 0.001, 0.0, 1), (0.1, 8.0, 0.1, 64), (1.0, 1.0, 0.5, 10)],
)
def test_half_the_steps_hide_an_exchange_and_its_work_is_a_twentieth(
    step: float, exchange: float, own: float, every: int
) -> None:
    assert measured.steps_between(step, exchange, own) == every
    if 1 < every < 64:
        assert 2 * exchange <= every / 2 * step
        assert own <= 0.05 * (every * step + own)


@pytest.mark.usefixtures("two_hosts")
def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made()
    train(model, optimizer, 0, 1)
    second = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, words in (
        (lambda: check_sync_every("0"), "--sync-every 0 is no number of steps"),
        (lambda: check_sync_every("often"), "from 1 on, or auto"),
        (lambda: check_outer("adam"), "--outer adam is not known; give nesterov or none"),
        (lambda: job.require().communication.set_local_steps(None, "none"), "give --sync-every, too"),
        (lambda: cpudist.wrap(torch.nn.Linear(2, 1), outer="none"), "give --sync-every, too"),
        (lambda: train(model, second, 1, 2), "one optimizer updates a model"),
        (lambda: train(*without_rate(), 0, 1), "here is none; take --outer none"),
        (lambda: cpudist.step(optimizer, torch.amp.GradScaler("cpu")), "does not go with float16"),
        (lambda: made(every=2) and cpudist.wrap(model.module, sync_every=2, shard_optimizer=True), "shard_optimizer="),
        (lambda: cpudist.wrap(torch.nn.Linear(2, 1), sync_every=2, compress="powersgd"), "--compress powersgd"),
    ):
        with pytest.raises(UserError, match=words):
            wrong()
    monkeypatch.setattr(type(job.require().backend), "steps_locally", False)  # as on xla
    with pytest.raises(UserError, match="averages gradients in each step; leave --sync-every out"):
        job.require().communication.set_local_steps("4")


def test_in_code_what_the_backend_lacks_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cpudist.init("gloo", pin=False)
    try:
        monkeypatch.setattr(type(job.require().backend), "steps_locally", False)  # as on xla
        model = cpudist.wrap(torch.nn.Linear(2, 1), compress="int8", sync_every=4, outer="none")
        says = "cpudist: gloo averages gradients without compress=int8 and sync_every=4, which has no effect here\n"
        assert capsys.readouterr().err.endswith(says)
        assert local_steps.of(model.module) is None
        wrong: dict[str, Any]
        for wrong in ({"compress": "int9"}, {"sync_every": 0}):
            with pytest.raises(UserError, match=r"int9 is not known|0 is no number of steps"):
                cpudist.wrap(torch.nn.Linear(2, 1), **wrong)
    finally:
        cpudist.shutdown()


def test_a_job_without_a_wrapped_model_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    start_as_one_of_two()
    job.require().communication.set_local_steps("auto")
    cpudist.shutdown()
    assert "warning: --sync-every had no effect" in capsys.readouterr().err


def test_on_one_host_there_is_nothing_to_spare(capsys: pytest.CaptureFixture[str]) -> None:
    cpudist.init("gloo", pin=False)
    try:
        model, optimizer = made()
        train(model, optimizer, 0, 1)
        assert local_steps.of(model.module) is None
    finally:
        cpudist.shutdown()
    assert "--sync-every 3 changes nothing here: all ranks are on one host" in capsys.readouterr().err
