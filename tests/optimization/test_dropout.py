"""Dropout on all threads: its numbers, its gradients, what repeats it and what switches it off."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator

import jobs
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cpudist
from cpudist import compiler, job
from cpudist.changes import Changes
from cpudist.optimization import choice, dropout

pytestmark = pytest.mark.versions

drop = torch.nn.functional.dropout
MANY = 3 * dropout._FEW + 77


@pytest.fixture(autouse=True)
def replaced() -> Iterator[Changes]:
    """torch's kernels are replaced, until `undo`; an earlier test may have done so without a job, to the end."""
    if dropout._replaced is not None:
        dropout._restore()
    with Changes() as changes:
        dropout.draw_on_all_threads(changes)
        yield changes


def _seeded(seed: int, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(seed)
    return run()


def _torchs(tensor: torch.Tensor, p: float) -> torch.Tensor:
    """Return dropout as torch computes it."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch.ops.aten.dropout.default._op_dk(key, tensor, p, True)


def _philox(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of counters, an array of four rows."""
    c = [row.astype(np.uint64) for row in counters]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        one, two = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        upper = np.uint64(32)
        c = [(two >> upper) ^ c[1] ^ np.uint64(key[0]), two & low, (one >> upper) ^ c[3] ^ np.uint64(key[1]), one & low]
        key = (key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32
    return np.stack(c)


def _expected(count: int, p: float, seed: int) -> torch.Tensor:
    """The mask of a seed, by Philox in numpy."""
    counters = np.zeros((4, -(-count // 64) * 16), np.uint64)
    counters[0] = np.arange(counters.shape[1])
    words = _philox(counters, (seed % 2**32, seed >> 32))  # word k of counter 16 g + i decides element 64 g + 16 k + i
    ordered = words.reshape(4, -1, 16).transpose(1, 0, 2).reshape(-1)[:count]
    return torch.from_numpy(ordered < round(p * 2**32))


def test_philox_has_the_answers_of_its_authors() -> None:
    """kat_vectors of Random123."""
    answers = {
        0: "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        0xFFFFFFFF: "408f276d 41c83b0e a20bc7c6 6d5451fd",
    }
    for word, answer in answers.items():
        found = _philox(np.full((4, 1), word), (word, word))
        assert " ".join(f"{int(number):08x}" for number in found[:, 0]) == answer


@pytest.mark.parametrize("widest", [16, 32, 64])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 5000])
def test_masks_are_philox_with_any_instructions(widest: int, count: int) -> None:
    seed, p = 0x0123456789ABCDEF, 0.3
    out = torch.full((count,), 7, dtype=torch.uint8)
    mask = ctypes.c_size_t(count), ctypes.c_uint64(seed), ctypes.c_uint32(round(p * 2**32)), 1, widest
    dropout._kernel().cpudist_bernoulli(ctypes.c_void_p(out.data_ptr()), 1, ctypes.c_uint64(1), *mask)
    assert torch.equal(out.bool(), _expected(count, p, seed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_same_bits_on_any_number_of_threads(dtype: torch.dtype) -> None:
    before = torch.get_num_threads()
    tensor = torch.randn(MANY).to(dtype)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(_seeded(1, lambda: drop(tensor, 0.2)))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    seed = _seeded(1, lambda: torch.empty((), dtype=torch.int64).random_())
    scale = torch.ones((), dtype=dtype) / 0.8
    assert torch.equal(found[0], tensor * _expected(MANY, 0.8, int(seed)) * scale)


def test_moments_and_independence() -> None:
    count, p = 1 << 20, 0.1
    torch.manual_seed(5)
    masks = [torch.empty(count).bernoulli_(p).double() - p for _ in range(2)]
    spread = (p * (1 - p) / count) ** 0.5
    assert abs(masks[0].mean()) < 5 * spread
    variance = p * (1 - p)
    for other in (masks[1], *(masks[0].roll(shift) for shift in (1, 2, 4, 16, 32, 64, 1024))):
        assert abs((masks[0] * other).mean()) < 5 * variance / count**0.5
    # The number of ones in 16 elements has the binomial distribution: chi-square, 6 degrees of freedom.
    ones = (masks[0] > 0).view(-1, 16).sum(1).clamp(max=6).bincount(minlength=7)
    binomial = torch.distributions.Binomial(16, torch.tensor(p, dtype=torch.float64))
    chances = binomial.log_prob(torch.arange(6.0, dtype=torch.float64)).exp()
    wanted = torch.cat([chances, 1 - chances.sum(0, keepdim=True)]) * len(masks[0]) / 16
    assert ((ones - wanted).square() / wanted).sum() < 27.9, "one in ten thousand"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels last", "with gaps", "expanded"])
def test_gradients_and_layouts(dtype: torch.dtype, layout: str) -> None:
    whole = torch.randn(8, 30, 21, 20).to(dtype)
    tensor = {
        "contiguous": whole,
        "transposed": whole.transpose(1, 3),
        "channels last": whole.to(memory_format=torch.channels_last),
        "with gaps": whole[:, ::2],
        "expanded": whole[:, :1].expand(8, 30, 21, 20),
    }[layout].requires_grad_()
    result = _seeded(3, lambda: drop(tensor, 0.25))
    scale = torch.ones((), dtype=dtype) / 0.75
    kept = result != 0
    assert torch.equal(result, torch.where(kept, tensor * scale, 0))
    assert kept.double().mean() == pytest.approx(0.75, abs=0.01)
    assert result.stride() == torch.empty_like(tensor).stride()
    for gradient in (torch.randn_like(result), torch.randn(result.shape[::-1]).to(dtype).permute(3, 2, 1, 0)):
        (found,) = torch.autograd.grad(result, tensor, gradient, retain_graph=True)
        assert torch.equal(found, torch.where(kept, gradient * scale, 0))
    # As torch itself computes from the same mask.
    assert torch.equal(result, _seeded(3, lambda: _torchs(tensor, 0.25)))


def test_derivatives_of_derivatives_and_transforms() -> None:
    tensor = torch.randn(MANY, requires_grad=True)
    result = _seeded(2, lambda: drop(tensor, 0.5))
    scaled = (result != 0) * 2.0
    (gradient,) = torch.autograd.grad(result.square().sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), tensor)
    torch.testing.assert_close(second, 2 * scaled.square())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensor.detach(), torch.ones(MANY))
        tangent = torch.autograd.forward_ad.unpack_dual(_seeded(2, lambda: drop(dual, 0.5))).tangent
    assert torch.equal(tangent, scaled)
    assert torch.equal(_seeded(2, lambda: torch.func.grad(lambda x: drop(x, 0.5).sum())(tensor.detach())), scaled)


def test_edges_are_those_of_torch(replaced: Changes) -> None:
    special = torch.tensor([float("nan"), float("inf"), -1.0]).repeat(dropout._FEW)

    def results() -> list[object]:
        found: list[object] = []
        for p in (0.0, 1.0, -0.1, 1.1, float("nan")):
            for call in (
                lambda p=p: drop(special, p),
                lambda p=p: drop(special, p, training=False),
                lambda p=p: drop(special.clone(), p, inplace=True),
                lambda p=p: torch.empty(3).bernoulli_(p),
                lambda p=p: torch.empty(3, dtype=torch.int32).bernoulli_(p),
            ):
                try:
                    found.append([str(number) for number in call().tolist()[:3]])
                except (RuntimeError, ValueError) as error:
                    found.append(type(error))
        for wrong in (
            lambda: drop(torch.ones(MANY, dtype=torch.int32), 0.5),
            lambda: torch.ones(1).expand(3).bernoulli_(0.5),
            lambda: torch.ones(3, dtype=torch.complex64).bernoulli_(0.5),
        ):
            with pytest.raises(RuntimeError) as caught:
                wrong()
            found.append(type(caught.value))
        return found

    ours = results()
    dropped = drop(special, 0.5)
    assert dropped[0::3].isnan().all()
    assert {str(number) for number in dropped[1::3].tolist()} == {"nan", "inf"}
    assert {str(number) for number in dropped[2::3].tolist()} == {"-0.0", "-2.0"}
    replaced.undo()
    assert ours == results()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_bernoulli_of_any_type_and_generator(dtype: torch.dtype) -> None:
    def draw(generator: torch.Generator | None, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.bernoulli_(0.3, generator=generator)

    state = torch.get_rng_state()
    first = draw(torch.Generator().manual_seed(4), torch.empty(1000).to(dtype))
    again = draw(torch.Generator().manual_seed(4), torch.empty(1000).to(dtype))
    assert torch.equal(first, again)
    assert set(first.double().unique().tolist()) == {0.0, 1.0}
    assert torch.equal(torch.get_rng_state(), state), "another generator does not move the default one"
    wide = torch.full((1000, 2), 7).to(dtype)
    draw(torch.Generator().manual_seed(4), wide[:, 0])
    assert torch.equal(wide[:, 0], first)
    assert (wide[:, 1] == torch.tensor(7).to(dtype)).all()


def test_states_of_the_generator_and_recomputed_activations_repeat_masks() -> None:
    tensor = torch.randn(MANY, requires_grad=True)
    state = torch.get_rng_state()
    first = drop(tensor, 0.1)
    assert not torch.equal(first, drop(tensor, 0.1))
    torch.set_rng_state(state)
    assert torch.equal(first, drop(tensor, 0.1))

    layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Dropout(0.3), torch.nn.Linear(256, 256))
    inputs = torch.randn(256, 256, requires_grad=True)
    found = []
    for run in (
        layers,
        lambda x: checkpoint(layers, x, use_reentrant=False),
        lambda x: checkpoint(layers, x, use_reentrant=True),
    ):
        loss = _seeded(6, lambda run=run: run(inputs).square().mean())
        found.append(torch.autograd.grad(loss, [inputs]) if run is layers else _gradients(loss, inputs))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][0], found[2][0])


def _gradients(loss: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor]:
    inputs.grad = None  # reentrant checkpoints work under backward() alone
    loss.backward()
    assert inputs.grad is not None
    return (inputs.grad,)


def test_attention_gets_it() -> None:
    query = torch.randn(2, 4, 128, 16, requires_grad=True)
    with torch.profiler.profile() as profile:
        torch.nn.functional.scaled_dot_product_attention(query, query, query, dropout_p=0.1).sum().backward()
    names = {event.name for event in profile.events()}
    assert "aten::dropout" in names
    assert "aten::bernoulli_" not in names, "nothing keeps a mask"


def _loss(seed: int) -> float:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(512, 64, generator=generator)
    labels = (inputs @ torch.randn(64, 4, generator=generator)).argmax(1)
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(256, 4)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.nn.functional.cross_entropy(model.eval()(inputs), labels).item()


def test_losses_are_within_the_spread_of_seeds(replaced: Changes) -> None:
    ours = [_loss(seed) for seed in range(5)]
    replaced.undo()
    torchs = [_loss(seed) for seed in range(5)]
    middle, spread = np.mean(torchs), np.std(torchs)
    assert abs(np.mean(ours) - middle) < 4 * spread
    assert ours != torchs


def test_optimize_replaces_it_until_the_job_ends(replaced: Changes) -> None:
    replaced.undo()
    tensor = torch.ones(MANY)
    plain = _seeded(1, lambda: drop(tensor, 0.5))
    cpudist.init("gloo")
    cpudist.optimize(torch.nn.Linear(1, 1), ipex=False, keep_memory=False, parallel_dropout=False)
    assert torch.equal(plain, _seeded(1, lambda: drop(tensor, 0.5)))
    assert "parallel dropout" not in job.require().record.optimizations
    for _ in range(2):
        cpudist.optimize(torch.nn.Linear(1, 1), ipex=False, keep_memory=False)
        assert not torch.equal(plain, _seeded(1, lambda: drop(tensor, 0.5)))
        assert job.require().record.optimizations[-1] == "parallel dropout"
    cpudist.shutdown()
    assert torch.equal(plain, _seeded(1, lambda: drop(tensor, 0.5)))


def test_without_a_compiler_one_line_says_so(
    replaced: Changes, alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: object, capfd: pytest.CaptureFixture[str]
) -> None:
    replaced.undo()
    dropout._kernel.cache_clear()
    monkeypatch.setenv("CPUDIST_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    cpudist.optimize(torch.nn.Linear(1, 1), ipex=False, keep_memory=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith(
        "cpudist: warning: the dropout kernel must be compiled once and there is no C++ compiler"
    )
    assert lines[0].endswith("; dropout stays on one thread")
    assert "dropout on one thread" in lines[1]
    assert len(lines) == 2
    assert job.require().record.optimizations == ["native", choice.ONE_THREAD]


@pytest.mark.job
def test_the_screen_stays_clean_and_compiled_models_draw_too() -> None:
    program = """
import torch, cpudist
cpudist.optimize(torch.nn.Linear(1, 1), ipex=False)
print(torch.nn.functional.dropout(torch.ones(40000), 0.5).mean().round().item())
double = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5) * 2)
x = torch.ones(40000, requires_grad=True)
y = double(x)
y.sum().backward()
print(torch.equal(y, x.grad), (y == 0).float().mean().item() // 0.4)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.splitlines() == ["1.0", "True 1.0"]
    lines = [line for line in done.stderr.splitlines() if "No CUDA runtime" not in line]
    assert len(lines) == 1, done.stderr


@pytest.mark.job
def test_each_rank_draws_by_its_own_seed() -> None:
    program = """
import cpudist, torch
world = cpudist.init("gloo")
cpudist.optimize(torch.nn.Linear(1, 1), ipex=False)
masks = []
for seed in (7, world.rank):
    torch.manual_seed(seed)
    mask = torch.nn.functional.dropout(torch.ones(40000), 0.5)
    both = [torch.empty_like(mask) for _ in range(2)]
    torch.distributed.all_gather(both, mask)
    masks.append(torch.equal(*both))
if world.rank == 0:
    print(masks)
"""
    result = jobs.run([*jobs.mpirun(2, sys.executable), "-c", program], 120)
    assert "[True, False]" in result.stdout, result.output
