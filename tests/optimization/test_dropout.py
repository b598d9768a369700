"""Dropout on all threads: its masks, its gradients under every transform, and whose it is."""

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import func, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel

import cpudist
from cpudist import compiler, job
from cpudist.optimization import dropout, ipex, kernels

pytestmark = pytest.mark.versions

MANY = 100_000
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators are used whatever this machine's threads measure."""
    dropout._load()
    monkeypatch.setattr(dropout, "_FASTER", float("inf"))
    dropout._is_faster.cache_clear()


def drop(tensor: torch.Tensor, p: float = 0.25) -> Any:
    return torch.ops.cpudist.dropout(tensor, p, True)


def _seeded(run: Callable[[], Any], seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return run()


def _philox(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of counters, an array of four rows."""
    c = [row.astype(np.uint64) for row in counters]
    low, upper = np.uint64(0xFFFFFFFF), np.uint64(32)
    for _ in range(10):
        one, two = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(two >> upper) ^ c[1] ^ np.uint64(key[0]), two & low, (one >> upper) ^ c[3] ^ np.uint64(key[1]), one & low]
        key = (key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32
    return np.stack(c)


def test_philox_has_the_answers_of_its_authors() -> None:
    """kat_vectors of Random123."""
    answers = {0: "6627e8d5 e169c58d bc57ac4c 9b00dbd8", 0xFFFFFFFF: "408f276d 41c83b0e a20bc7c6 6d5451fd"}
    for word, answer in answers.items():
        found = _philox(np.full((4, 1), word), (word, word))
        assert " ".join(f"{int(number):08x}" for number in found[:, 0]) == answer


@given(st.integers(0, 2**63 - 1), st.integers(0, 3000), st.sampled_from(DTYPES), st.floats(0.01, 0.99))
@settings(max_examples=50, deadline=None)
def test_masks_are_philox(seed: int, count: int, dtype: torch.dtype, p: float) -> None:
    counters = np.zeros((4, -(-count // 64) * 16), np.uint64)
    counters[0] = np.arange(counters.shape[1])
    words = _philox(counters, (seed % 2**32, seed >> 32))  # word k of counter 16 g + i decides element 64 g + 16 k + i
    kept = words.reshape(4, -1, 16).transpose(1, 0, 2).reshape(-1)[:count] < round((1 - p) * 2**32)
    tensor = torch.randn(count, dtype=dtype)
    expected = tensor * (torch.from_numpy(kept) * torch.ones((), dtype=dtype).div(1 - p))
    assert torch.equal(torch.ops.cpudist.masked(tensor, torch.tensor(seed), p), expected)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.sampled_from(DTYPES),
    st.floats(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_layouts_threads_and_gradients(shape: list[int], random: Any, dtype: torch.dtype, p: float) -> None:
    """The oracle is a product with the mask that was seen."""
    tensor = torch.rand(shape).add(1).to(dtype).permute(random.sample(range(len(shape)), len(shape))).requires_grad_()
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(_seeded(lambda: drop(tensor, p)))
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    strides = zip(tensor.shape, found[0].stride(), torch.dropout(tensor, p, True).stride(), strict=True)
    assert all(one == other for size, one, other in strides if size > 1)
    gradient = torch.randn(found[0].shape).to(dtype)
    (derivative,) = torch.autograd.grad(found[0], tensor, gradient)
    scale = torch.ones((), dtype=dtype).div(1 - p) if p < 1 else 0
    assert torch.equal(derivative, torch.where(found[0] != 0, gradient * scale, 0))


def test_edges_are_those_of_torch() -> None:
    special = torch.tensor([float("nan"), float("inf"), -1.0]).repeat(MANY)
    dropped = drop(special, 0.5)
    assert dropped[0::3].isnan().all()
    assert {str(number) for number in dropped[1::3].tolist()} == {"nan", "inf"}
    assert {str(number) for number in dropped[2::3].tolist()} == {"-0.0", "-2.0"}
    for tensor in (torch.randn(MANY, dtype=torch.float64), torch.randn(MANY).half(), torch.randn(100), torch.randn(0)):
        assert torch.equal(_seeded(lambda: drop(tensor)), _seeded(lambda: torch.dropout(tensor, 0.25, True))), "torch's"  # noqa: B023
    for wrong in ((special, -0.1), (special, 1.1), (torch.ones(MANY, dtype=torch.int32), 0.5)):
        with pytest.raises(RuntimeError):
            drop(*wrong)


def test_transforms() -> None:
    tensor, ones = torch.randn(2000), torch.ones(2000)
    mask = _seeded(lambda: drop(ones))
    diagonal = mask.diag()
    assert torch.equal(_seeded(lambda: func.grad(lambda x: drop(x).sum())(tensor)), mask)
    assert torch.equal(_seeded(lambda: func.jvp(drop, (tensor,), (ones,)))[1], mask)
    assert torch.equal(_seeded(lambda: func.jacrev(drop)(tensor)), diagonal)
    assert torch.equal(_seeded(lambda: func.jacfwd(drop, randomness="same")(tensor)), diagonal)
    assert torch.equal(_seeded(lambda: func.functionalize(drop)(ones)), mask)
    leaf = tensor.clone().requires_grad_()
    result = _seeded(lambda: drop(leaf))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batched,) = torch.autograd.grad(result, leaf, ones.expand(3, -1), is_grads_batched=True, retain_graph=True)
        assert torch.equal(batched, mask.expand(3, -1))
        jacobian = _seeded(lambda: torch.autograd.functional.jacobian(drop, leaf, vectorize=True))
        assert torch.equal(jacobian, diagonal)
        assert torch.equal(
            func.vmap(lambda v: torch.autograd.grad(result, leaf, v)[0])(diagonal[:3]), diagonal[:3] * mask
        )
    (gradient,) = torch.autograd.grad(_seeded(lambda: drop(leaf)).square().sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), leaf)
    torch.testing.assert_close(second, 2 * mask.square())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensor, ones)
        assert torch.equal(torch.autograd.forward_ad.unpack_dual(_seeded(lambda: drop(dual))).tangent, mask)


def test_vmap_draws_as_its_randomness_says() -> None:
    examples = torch.ones(2, 3, 2000)

    def equal(outer: str, inner: str, tensor: torch.Tensor = examples) -> list[bool]:
        made = func.vmap(func.vmap(drop, randomness=inner), randomness=outer)(tensor)
        return [torch.equal(made[0, 0], made[1, 0]), torch.equal(made[0, 0], made[0, 1])]

    for outer in ("same", "different"):
        for inner in ("same", "different"):
            assert equal(outer, inner) == [outer == "same", inner == "same"]
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(drop)(examples)
    for transformed in (func.grad(lambda x: drop(x).sum()), lambda x: drop(examples[0, 0]) + 0 * x):
        made = func.vmap(transformed, randomness="different")(examples[0])
        assert not torch.equal(made[0], made[1])
    assert torch.equal(
        _seeded(lambda: func.vmap(drop, randomness="same")(examples[0]))[1], _seeded(lambda: drop(examples[0, 0]))
    )


def _operators(run: Callable[[], object]) -> set[str]:
    with torch.profiler.profile() as profile:
        run()
    return {event.name for event in profile.events()}


def _bert(attention: str) -> tuple[nn.Module, Any]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=64, **sizes, attn_implementation=attention)), [torch.randint(64, (4, 64))]


def _encoder() -> tuple[nn.Module, Any]:
    return nn.TransformerEncoderLayer(64, 2, 64, 0.1, batch_first=True), [torch.randn(4, 64, 64)]


def _attention() -> tuple[nn.Module, Any]:
    """It also returns its weights, which torch computes without sdpa."""
    return nn.MultiheadAttention(64, 2, 0.1, batch_first=True), [torch.randn(4, 64, 64)] * 3


@pytest.mark.parametrize("made", [partial(_bert, "sdpa"), partial(_bert, "eager"), _encoder, _attention])
def test_a_model_gets_it_and_its_copies_and_no_other(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (model, inputs), (other, _) = made(), made()
    torchs = _seeded(lambda: model(*inputs))
    assert dropout.divide(model)
    file = io.BytesIO()
    torch.save(model, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for divided in (model, copy.deepcopy(model), saved):
        assert "aten::bernoulli_" not in _operators(lambda: divided(*inputs)), "neither of layers nor of attention"  # noqa: B023
    assert "cpudist::masked" not in _operators(lambda: other(*inputs))
    assert "cpudist::masked" not in _operators(lambda: model.eval()(*inputs))
    dropout.restore(model.train())
    monkeypatch.setattr(dropout, "_key", None)  # the saved model in a process that has not loaded the operators
    for again in (model, saved):
        repeated = _seeded(lambda: again(*inputs))  # noqa: B023
        torch.testing.assert_close(repeated, torchs, rtol=0, atol=0)


def test_transforms_of_attention() -> None:
    """torch.func has torch's masks there; batched gradients are of ours."""
    model, (inputs, *_) = _attention()
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: torch.Tensor) -> Any:
        return func.functional_call(model, parameters, (x, x, x))[0].square().mean()

    each = func.vmap(func.grad(loss), in_dims=(None, 0), randomness="different")
    wanted = _seeded(lambda: each(parameters, inputs.repeat(2, 1, 1, 1)))
    dropout.divide(model)
    found = _seeded(lambda: each(parameters, inputs.repeat(2, 1, 1, 1)))
    for name, one in found.items():
        assert torch.equal(one, wanted[name])
    result, directions = model(inputs, inputs, inputs)[0], torch.randn(3, *inputs.shape)
    gradients = partial(torch.autograd.grad, result, list(parameters.values()), retain_graph=True)
    for one, *rows in zip(gradients(directions, is_grads_batched=True), *map(gradients, directions), strict=True):
        torch.testing.assert_close(one, torch.stack(rows))


def test_states_of_the_generator_and_recomputed_activations_repeat_masks() -> None:
    layers = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.3), nn.Linear(256, 256))
    dropout.divide(layers)
    inputs = torch.randn(256, 256)
    state = torch.get_rng_state()
    first = layers(inputs)
    assert not torch.equal(first, layers(inputs))
    torch.set_rng_state(state)
    assert torch.equal(first, layers(inputs))
    found = []
    for run in (
        layers,
        lambda x: checkpoint(layers, x, use_reentrant=False),
        lambda x: checkpoint(layers, x, use_reentrant=True),
    ):
        leaf = inputs.clone().requires_grad_()
        _seeded(lambda run=run, leaf=leaf: run(leaf)).square().mean().backward()
        found.append(leaf.grad)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_optimize_and_its_second_thought(alone: None) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5, inplace=True))
    torchs = _seeded(lambda: model(torch.ones(MANY)))
    drawn = []
    for parallel in (True, True, False):
        cpudist.optimize(model, ipex=False, keep_memory=False, parallel_dropout=parallel)
        drawn.append(torch.equal(torchs, _seeded(lambda: model(torch.ones(MANY)))))
        assert ("parallel dropout" in job.require().record.optimizations) is parallel
    assert drawn == [False, False, True]


def test_slower_than_torchs_and_where_there_is_no_dropout_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not dropout.divide(nn.Sequential(nn.Linear(1, 1)))
    monkeypatch.setattr(dropout, "_FASTER", 0)
    model, state = nn.Sequential(nn.Dropout()), torch.get_rng_state()
    assert not dropout.divide(model)
    assert "forward" not in vars(model[0])
    assert torch.equal(state, torch.get_rng_state())


def test_without_a_compiler_one_line_says_so(
    alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: object, capfd: pytest.CaptureFixture[str]
) -> None:
    dropout._load.cache_clear()
    monkeypatch.setenv("CPUDIST_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    cpudist.optimize(nn.Dropout(), ipex=False, keep_memory=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("cpudist: warning: the dropout kernel must be compiled once")
    assert len(lines) == 2
    assert job.require().record.optimizations == ["native", kernels.ONE_THREAD]


@pytest.mark.skipif(ipex.missing() is None, reason="beside Intel's extension compiled models run eagerly")
def test_a_compiled_model_draws_all_its_masks() -> None:
    model, (words,) = _bert("sdpa")
    dropout.divide(model.train())
    masks = []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        masks.append(sum(node.target is torch.ops.cpudist.masked.default for node in graph.graph.nodes))
        return graph

    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=count), fullgraph=True)
    compiled(words).last_hidden_state.sum().backward()
    assert masks == [4, 4]  # in the forward and in the backward pass: one of embeddings, three of a layer


@pytest.mark.parametrize(
    ("p", "causal", "masked", "heads"), [(0.5, False, True, 2), (0.1, True, False, 2), (0.5, False, False, 1)]
)
def test_compiled_attention_is_torchs(p: float, causal: bool, masked: bool, heads: int) -> None:
    """With the identity as values, attention returns its probabilities."""
    query, key = torch.randn(2, 3, 2, 64, 16).unbind(0)
    key, values = key[:, :heads].requires_grad_(), torch.eye(64).repeat(3, heads, 1, 1).requires_grad_()
    mask = (torch.rand(64, 64) < 0.5).index_fill(0, torch.tensor(5), False) if masked else None  # nothing in row 5
    attend = partial(nn.functional.scaled_dot_product_attention, enable_gqa=heads < 2, attn_mask=mask, is_causal=causal)

    @partial(torch.compile, backend="aot_eager", fullgraph=True)
    def compiled() -> torch.Tensor:
        with dropout._TracedAttention():
            return attend(query, key, values, dropout_p=p)

    kept = _seeded(compiled)
    assert torch.equal(kept, _seeded(compiled))
    whole = attend(query, key, values)
    torch.testing.assert_close(kept, torch.where(kept == 0, 0, whole / (1 - p)))
    assert (kept[whole > 0] == 0).float().mean().item() == pytest.approx(p, abs=0.02)
    given = torch.randn_like(kept)
    found = torch.autograd.grad(kept, (key, values), given, retain_graph=True)
    again = torch.autograd.grad(whole, key, torch.where(kept == 0, 0, given / (1 - p)), retain_graph=True)
    torch.testing.assert_close(found[0], *again)
    shared = kept.transpose(-1, -2) @ given
    torch.testing.assert_close(found[1], shared if heads > 1 else shared.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("backend", "randomness"), [("aot_eager", "same"), pytest.param("inductor", "different", marks=pytest.mark.job)]
)
def test_a_compiled_vmap_draws_as_it_says(backend: str, randomness: str) -> None:
    layer = nn.Dropout(0.5)
    dropout.divide(layer)
    leaf = torch.ones(2, MANY, requires_grad=True)
    compiled = torch.compile(func.vmap(layer, randomness=randomness), backend=backend)
    drawn = _seeded(lambda: compiled(leaf))
    drawn.sum().backward()
    assert torch.equal(drawn, leaf.grad)
    assert not torch.equal(drawn, compiled(leaf))
    assert torch.equal(drawn, _seeded(lambda: compiled(leaf)))
    assert torch.equal(*drawn) is (randomness == "same")
