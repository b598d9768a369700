"""Unequal shares of a step give one process's model; they follow the ranks' speeds, and stay where these are equal."""

import json
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import fork_ranks
from torch.utils.data import DataLoader, TensorDataset

import cpudist
from cpudist import job
from cpudist.balance import agreed
from cpudist.balance.agreed import Balance
from cpudist.balance.balancer import Balancer
from cpudist.balance.division import divide, seconds
from cpudist.supervision.rank_status import Pace


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=4), st.integers(0, 12), st.integers(1, 2), st.data())
def test_shares_are_the_fastest(speeds: list[float], more: int, least: int, data: st.DataObject) -> None:
    """No other shares within the limits are faster; and they divide other numbers in the same proportions."""
    samples = least * len(speeds) + more
    most = tuple(data.draw(st.integers(least + more if rank == 0 else least, samples)) for rank in range(len(speeds)))
    shares = divide(samples, tuple(speeds), least, most)
    assert sum(shares) == samples
    assert all(least <= share <= limit for share, limit in zip(shares, most, strict=True))
    for giver in range(len(speeds)):
        for taker in range(len(speeds)):
            other = list(shares)
            other[giver], other[taker] = other[giver] - 1, other[taker] + 1
            if giver != taker and other[giver] >= least and other[taker] <= most[taker]:
                assert seconds(shares, speeds) <= seconds(other, speeds)
    assert divide(samples, shares) == shares


class Setting:
    """What a number draws for a loop of one's own."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.ranks, self.batch, self.accumulation = 1 + number % 3, draw.randint(1, 4), draw.randint(1, 3)
        self.shares = tuple(draw.choice((1, 2, 3, 7)) for _ in range(3))
        self.size = draw.randint(self.ranks * self.batch, 5 * self.ranks * self.batch)
        self.clips, self.drops_last, self.workers = draw.random() < 0.5, draw.random() < 0.3, draw.choice((0, 0, 2))
        self.seed, self.compiles = number, number % 9 == 4
        self.most = draw.choice((1, 3, 100))  # batches of an epoch, which may end early
        # The numbers of ranks, and the steps that they make; the second ones resume.
        self.parts = [(self.ranks, 3), (draw.randint(1, 3), 2)] if number % 2 else [(self.ranks, 5)]

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(self.size, 5, generator=generator)
        return TensorDataset(inputs, inputs.prod(1, keepdim=True))

    def loader(self, rank: int) -> Any:
        sampler = cpudist.shares(self.data(), self.batch, seed=self.seed, drop_last=self.drops_last)
        return DataLoader(self.data(), batch_sampler=sampler, num_workers=self.workers * (rank % 2))

    def train(self, model: Any, optimizer: Any, batches: Any, steps: int) -> list[float]:
        """Make steps, and return the parameters."""
        compute = torch.compile(model, backend="eager") if self.compiles else model
        for _ in range(steps):
            for number in range(1, self.accumulation + 1):
                inputs, wanted = next(batches)
                sums = number == self.accumulation or not hasattr(model, "no_sync")
                with nullcontext() if sums else model.no_sync():
                    loss = torch.nn.functional.mse_loss(compute(inputs)["out"], wanted) / self.accumulation
                    loss.backward()
            if self.clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


class Model(torch.nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": super().forward(inputs).mul_(1.0)}


def _sgd(model: torch.nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def _epochs(loader: Any, first: int, most: int) -> Any:
    """Yield batches without end, in another order in each epoch; rank 0 chooses other shares all the time."""
    balance = job.require().balance
    for epoch in range(first, 1000):
        loader.batch_sampler.set_epoch(epoch)
        for batch in islice(loader, most - loader.batch_sampler.state_dict()["batch"]):
            balance.chosen = (*balance.chosen[1:], balance.chosen[0])
            yield batch


@pytest.mark.job
@pytest.mark.versions
@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.long if n >= 9 else ()) for n in range(60)])
def test_the_model_is_one_processs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """With drawn shares, batches, accumulation, clipping and workers, compiled, and resumed on other ranks."""
    setting = Setting(number)
    monkeypatch.setattr(agreed, "_PERIOD", 2)

    def script(steps: int) -> None:
        world = cpudist.init("gloo", pin=False, balance=True)
        job.require().balance.chosen = setting.shares[: world.size]
        model, loader = cpudist.wrap(Model()), setting.loader(world.rank)
        checkpoints = cpudist.Checkpoints(tmp_path / "saved")
        training = {"model": model, "optimizer": _sgd(model), "sampler": loader.batch_sampler}
        begin = checkpoints.restore(**training, epoch=0)
        batches = _epochs(loader, checkpoints.values["epoch"], setting.most)
        found = setting.train(model, training["optimizer"], batches, steps)
        checkpoints.save(begin + steps, **training, epoch=loader.batch_sampler.state_dict()["epoch"])
        (tmp_path / f"{world.rank}").write_text(json.dumps(found))
        cpudist.shutdown()

    model = Model()
    expected = setting.train(model, _sgd(model), _batches_of_all(setting), 5)
    for ranks, steps in setting.parts:
        ended = fork_ranks(partial(script, steps), ranks)
        assert [status for status, _ in ended] == [0] * ranks, (vars(setting), ended)
    for rank in range(setting.parts[-1][0]):
        found = json.loads((tmp_path / f"{rank}").read_text())
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6), vars(setting)


def _batches_of_all(setting: Setting) -> Any:
    """Yield the batches of all ranks together, in DistributedSampler's order."""
    whole, data = setting.ranks * setting.batch, setting.data()
    for epoch in range(1000):
        order = torch.randperm(setting.size, generator=torch.Generator().manual_seed(setting.seed + epoch))
        batches = order.split(whole)
        batches = batches[: len(batches) - (setting.drops_last and len(batches[-1]) < whole)]
        for batch in batches[: setting.most]:
            yield data[batch]


def _step(model: Any, inputs: torch.Tensor) -> None:
    model(inputs)["out"].mean().backward()
    torch.optim.SGD(model.parameters()).step()


def _model_without_ddp(loader: Any) -> None:
    model = Model()
    for inputs, _ in loader:
        _step(model, inputs)


def _indices_without_loader(loader: Any) -> None:
    model = cpudist.wrap(Model())
    for indices in loader.batch_sampler:
        _step(model, torch.ones(len(indices), 5))


def _other_inputs(loader: Any) -> None:
    model = cpudist.wrap(Model())
    for _ in loader:
        _step(model, torch.ones(7, 5))


def _outputs_of_unknown_type(loader: Any) -> None:
    class Odd(Model):
        def forward(self, inputs: torch.Tensor) -> Any:
            return SimpleNamespace(**super().forward(inputs))

    model = cpudist.wrap(Odd())
    for inputs, _ in loader:
        model(inputs).out.mean().backward()


def _sums(loader: Any) -> None:
    model = cpudist.wrap(Model())
    inputs, wanted = next(iter(loader))
    errors = model(inputs)["out"] - wanted
    errors.square().sum(1).mean().backward(retain_graph=True)
    (errors.square().sum() / len(inputs) + sum(each.square().sum() for each in model.parameters())).backward()
    with pytest.raises(cpudist.UserError, match="the loss is a sum"):
        (model(inputs)["out"] - wanted).square().sum(1).sum().neg().backward()
    (torch.nn.functional.mse_loss(model(inputs)["out"], wanted, reduction="sum") * 0.5 + 1).backward()


def test_a_batch_of_no_samples_is_refused() -> None:
    with pytest.raises(cpudist.UserError, match="from 1 on, not 0"):
        cpudist.shares([1], 0)


@pytest.mark.job
@pytest.mark.parametrize(
    ("loop", "shares", "expected"),
    [
        (_model_without_ddp, (3, 1), "without its weight"),
        (_model_without_ddp, (1, 1), "without its weight"),  # of the last batch
        (_indices_without_loader, (3, 1), "no DataLoader has it"),
        (_other_inputs, (3, 1), "is not known"),
        (_outputs_of_unknown_type, (3, 1), "outputs of the type SimpleNamespace"),
        (_sums, (1, 1), "the loss is a sum"),
    ],
)
def test_a_loop_whose_weights_are_unknown_is_refused(
    loop: Callable[[Any], object], shares: tuple[float, ...], expected: str
) -> None:
    def script() -> None:
        cpudist.init("gloo", pin=False)
        job.require().balance.chosen = shares
        data = TensorDataset(torch.ones(43, 5), torch.ones(43, 1))
        with pytest.raises(cpudist.UserError, match=expected):
            loop(DataLoader(data, batch_sampler=cpudist.shares(data, 2)))
        os._exit(0)  # the other rank may wait for this one

    assert [status for status, _ in fork_ranks(script)] == [0, 0]


class Steps:
    """Ranks that make steps of `per_step` samples, with drawn speeds, and the balancer that reads them at each step."""

    def __init__(self, ranks: int, per_step: int, available: int = 1 << 40, follows: bool = True) -> None:
        self.balance = Balance(0, ranks, None, None)
        self.balance.per_step, self.balance.follows_speeds = per_step, follows
        self.balancer = Balancer(self.balance, [f"h{rank}" for rank in range(ranks)])
        start = Pace(2, 5.0, 0.0, 0, 0.0, 0.0, 1 << 30, 0.0, 0, None, 8, None, 5.0, 0.0, available=available)
        self.paces = dict.fromkeys(range(ranks), start)
        self.noise = random.Random(5)

    def make(self, steps: int, *speeds: float, spread: float = 0.03) -> list[tuple[int, ...]]:
        """Make steps; return each choice of new shares, with the number of its step before it."""
        chosen = []
        for number in range(steps):
            shares = divide(self.balance.per_step, self.balance.chosen)
            took = [share / speed * self.noise.gauss(1, spread) for share, speed in zip(shares, speeds, strict=True)]
            before, now = self.paces, {}
            for rank, (share, computed) in enumerate(zip(shares, took, strict=True)):
                old, length = before[rank], max(took)
                at, waited = old.step_at + length, old.step_waited + length - computed
                new = {"at": at, "step_at": at, "step_waited": waited, "samples": old.samples + share}
                now[rank] = replace(old, steps=old.steps + 1, **new)
            self.paces = now
            if found := self.balancer.compare(before, now):
                chosen.append((number, *found["shares"]))
        return chosen


def test_shares_follow_the_speeds(capsys: pytest.CaptureFixture[str]) -> None:
    """Within 20 steps, then again within 60 where a host becomes slow or well, at most once in 100 steps."""
    steps = Steps(2, 16)
    [(number, *shares)] = steps.make(150, 30, 10)
    assert (number < 20, shares) == (True, [12, 4])
    assert "h1 computes 0.3" in capsys.readouterr().err
    [(number, *shares)] = steps.make(150, 30, 30)
    assert (number < 60, shares) == (True, [8, 8])
    [(number, *_)] = steps.make(60, 30, 10)
    assert number < 60
    assert steps.make(40, 10, 30) == [], "100 steps are not over"
    assert len(steps.make(60, 10, 30)) == 1


@pytest.mark.parametrize(("ranks", "per_step", "rate"), [(2, 16, 40), (3, 96, 100), (4, 1024, 3000)])
def test_an_hour_of_equal_hosts_keeps_its_shares(ranks: int, per_step: int, rate: float) -> None:
    steps = Steps(ranks, per_step)
    assert steps.make(int(3600 * rate / per_step * ranks), *[rate] * ranks, spread=0.05) == []


def test_a_share_stays_within_the_memory() -> None:
    """1 GiB for 8 samples, and half of it free: 12 samples at most; without --balance nothing changes."""
    [(_, *shares)] = Steps(2, 16, available=1 << 29).make(40, 90, 10)
    assert shares == [12, 4]
    assert Steps(2, 16, follows=False).make(40, 90, 10) == []
