"""The operators: masks of dropout, gradients under every transform, and whose they are."""

import copy
import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
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
from cpudist.optimization import ipex, kernels, operators

pytestmark = pytest.mark.versions

MANY = 100_000
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def _faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators are used whatever this machine's threads measure."""
    operators._load()
    monkeypatch.setattr(operators, "_FASTER", float("inf"))
    operators._faster.cache_clear()


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


@pytest.mark.parametrize(
    "transform",
    [
        lambda call, x: func.grad(lambda x: call(x).sum())(x),
        lambda call, x: func.jvp(call, (x,), (x,))[1],
        lambda call, x: func.jacrev(call)(x),
        lambda call, x: func.jacfwd(call, randomness="same")(x),
        lambda call, x: func.vmap(call, randomness="same")(x.view(2, -1)),
        lambda call, x: func.vmap(call, randomness="different")(x.view(2, -1)),
        lambda call, x: func.vmap(func.grad(lambda x: call(x).sum()), randomness="different")(x.view(2, -1)),
    ],
)
def test_transforms_of_torch_func_have_torchs_dropout(transform: Any) -> None:
    tensor = torch.randn(4096)
    found = _seeded(lambda: transform(drop, tensor))
    assert torch.equal(found, _seeded(lambda: transform(lambda x: torch.dropout(x, 0.25, True), tensor)))


def test_gradients_of_every_kind_have_the_mask() -> None:
    tensor, ones = torch.randn(2000), torch.ones(2000)
    leaf, mask = tensor.clone().requires_grad_(), _seeded(lambda: drop(ones))
    result, diagonal = _seeded(lambda: drop(leaf)), mask.diag()
    # Under functionalize torch 2.8 draws the mask, as in all transforms of torch.func.
    assert torch.equal(_seeded(lambda: func.functionalize(drop)(ones)).unique(), mask.unique())
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
        found, torchs = (
            _seeded(lambda call=call: call(dual)) for call in (drop, partial(torch.dropout, p=0.25, train=True))
        )
        assert torch.equal(*(torch.autograd.forward_ad.unpack_dual(one).tangent for one in (found, torchs)))


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
    assert operators.use(model)
    file = io.BytesIO()
    torch.save(model, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    for divided in (model, copy.deepcopy(model), saved):
        assert "aten::bernoulli_" not in _operators(lambda: divided(*inputs)), "neither of layers nor of attention"  # noqa: B023
    assert "cpudist::masked" not in _operators(lambda: other(*inputs))
    assert "cpudist::masked" not in _operators(lambda: model.eval()(*inputs))
    operators.restore(model.train())
    monkeypatch.setattr(operators, "_key", None)  # the saved model in a process that has not loaded the operators
    for again in (model, saved):
        repeated = _seeded(lambda: again(*inputs))  # noqa: B023
        torch.testing.assert_close(repeated, torchs, rtol=0, atol=0)


def test_transforms_of_attention() -> None:
    """torch.func has torch's masks there."""
    model, (inputs, *_) = _attention()
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: torch.Tensor) -> Any:
        return func.functional_call(model, parameters, (x, x, x))[0].square().mean()

    each = func.vmap(func.grad(loss), in_dims=(None, 0), randomness="different")
    wanted = _seeded(lambda: each(parameters, inputs.repeat(2, 1, 1, 1)))
    operators.use(model)
    found = _seeded(lambda: each(parameters, inputs.repeat(2, 1, 1, 1)))
    for name, one in found.items():
        assert torch.equal(one, wanted[name])


class _Attended(nn.Module):
    """A linear layer, attention with dropout, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(64, 64), nn.MultiheadAttention(64, 2, 0.3, batch_first=True)
        self.last = nn.Sequential(nn.Dropout(0.3), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0])


def test_without_kernels_only_the_masks_are_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_faster", lambda _: {operators.ATTENTION, operators.DROPOUT})
    monkeypatch.setattr(torch.ops.cpudist, "has_kernels", lambda: False)
    assert operators.use(_Attended()) == [operators.DROPOUT]


def test_states_of_the_generator_and_recomputed_activations_repeat_masks() -> None:
    model, inputs = _Attended(), torch.randn(8, 64, 64)
    assert operators.use(model)
    state = torch.get_rng_state()
    first = model(inputs)
    assert not torch.equal(first, model(inputs))
    torch.set_rng_state(state)
    assert torch.equal(first, model(inputs))
    found = []
    recomputed = (partial(checkpoint, model, use_reentrant=reentrant) for reentrant in (False, True))
    for run in (model, copy.deepcopy(model), *recomputed):
        leaf = inputs.clone().requires_grad_()
        _seeded(lambda run=run, leaf=leaf: run(leaf)).square().mean().backward()
        found.append(leaf.grad)
    for other in found[1:]:
        assert torch.equal(found[0], other)
    model.eval()
    torch.testing.assert_close(model(inputs), model(inputs), rtol=0, atol=0)
    assert not {"cpudist::masked", "cpudist::attention_forward"} & _operators(lambda: model(inputs))


def test_optimize_and_its_second_thought(alone: None) -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5, inplace=True))
    torchs = _seeded(lambda: model(torch.ones(MANY)))
    drawn = []
    for parallel in (True, True, False):
        cpudist.optimize(model, ipex=False, keep_memory=False, own_operators=parallel)
        drawn.append(torch.equal(torchs, _seeded(lambda: model(torch.ones(MANY)))))
        assert ("parallel dropout" in job.require().record.optimizations) is parallel
    assert drawn == [False, False, True]


def test_slower_than_torchs_and_where_there_is_no_dropout_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not operators.use(nn.Sequential(nn.Linear(1, 1)))
    monkeypatch.setattr(operators, "_FASTER", 0)
    model, state = nn.Sequential(nn.Dropout()), torch.get_rng_state()
    assert not operators.use(model)
    assert "forward" not in vars(model[0])
    assert torch.equal(state, torch.get_rng_state())


def test_without_a_compiler_one_line_says_so(
    alone: None, monkeypatch: pytest.MonkeyPatch, tmp_path: object, capfd: pytest.CaptureFixture[str]
) -> None:
    operators._load.cache_clear()
    monkeypatch.setenv("CPUDIST_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "find_compiler", lambda: None)
    cpudist.optimize(nn.Dropout(), ipex=False, keep_memory=False)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("cpudist: warning: the training operators must be compiled once")
    assert len(lines) == 2
    assert job.require().record.optimizations == ["native", kernels.TORCHS]


@pytest.mark.skipif(ipex.missing() is None, reason="beside Intel's extension compiled models run eagerly")
def test_a_compiled_model_draws_all_its_masks() -> None:
    model, (words,) = _bert("sdpa")
    operators.use(model.train())
    drawn = []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        ours = ("masked", "attention_forward", "attention_backward")
        names = [str(node.target).split(".")[1] for node in graph.graph.nodes if "cpudist" in str(node.target)]
        drawn.append([names.count(name) for name in ours])
        return graph

    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=count), fullgraph=True)
    found = []
    for run in (model, compiled):
        model.zero_grad()
        output = _seeded(lambda run=run: run(words))
        (output.last_hidden_state.square().sum() + output.pooler_output.sum()).backward()
        found.append([*output.values(), *(weight.grad for weight in model.parameters())])
    torch.testing.assert_close(*found)
    # In the forward and in the backward pass: one of the embeddings, three of a layer, of which one is attention's.
    assert drawn == ([[3, 1, 0], [3, 0, 1]] if torch.ops.cpudist.has_kernels() else [[4, 0, 0], [4, 0, 0]])


WITH_KERNELS = pytest.mark.skipif("avx512_bf16" not in Path("/proc/cpuinfo").read_text(), reason="needs AVX512_BF16")


def _each_head(query: Any, *shared: Any) -> list[Any]:
    """Return the query, and keys and values of each of its heads."""
    return [query, *(each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in shared)]


def _by_definition(query: Any, key: Any, value: Any, mask: Any, causal: bool, kept: Any = 1) -> Any:
    """Attention whose probabilities are multiplied by `kept`."""
    key, value = _each_head(query, key, value)[1:]
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return torch._safe_softmax(scores, -1) * kept @ value


def _drawn_attention(random: Random, dtype: torch.dtype) -> tuple[list[torch.Tensor], Any, bool]:
    """Query, key and value of any shape and layout, a mask and whether attention is causal."""
    batch, heads, shared = random.randint(1, 2), random.randint(1, 2), random.choice([1, 1, 3])
    queries = random.choice([1, 33, 64, 100, random.randint(1, 600)])
    size = random.choice([1, 40, 64, random.randint(1, 130)])
    keys = queries if random.random() < 0.5 else random.randint(1, 1100)
    tensors = []
    for tokens, count in ((queries, heads * shared), (keys, heads), (keys, heads)):
        packed = torch.randn(batch, tokens, random.choice([1, 3]), count, size) * random.choice([0.5, 1, 2])
        tensors.append(packed.to(dtype)[:, :, -1].transpose(1, 2))
    shape = batch, random.choice([1, heads * shared]), random.choice([1, queries]), keys
    share = random.choice([0.02, 0.6, 1])  # with the first, nothing is in some rows
    allowed = torch.rand(shape) < share
    if share == 1:
        allowed &= torch.arange(keys) < torch.randint(keys + 1, (batch, 1, 1, 1))  # the others are padding
    added = torch.randn(shape).masked_fill(~allowed, random.choice([-torch.inf, torch.finfo(dtype).min]))
    mask = random.choice([None, None, allowed, added.to(dtype)])
    return tensors, mask, mask is None and random.random() < 0.5


@WITH_KERNELS
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 200), marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_as_exact_as_torchs_and_has_one_mask_in_both_passes(dtype: torch.dtype, seeds: range) -> None:
    """The oracle computes in float64, with the masks that `masked` draws. torch has no such kernel with dropout."""
    limit = 0.03 if dtype is torch.bfloat16 else 5e-6
    for seed in seeds:
        random = Random(seed)
        torch.manual_seed(seed)
        tensors, mask, causal = _drawn_attention(random, dtype)
        options = {"attn_mask": mask, "is_causal": causal}
        gradient, p = torch.randn(tensors[0].shape).to(dtype), random.choice([0, 0.1, 0.5])
        shape, keys = tensors[0].shape[:3], tensors[1].shape[2]
        drawing = torch.ones(*shape, -(-keys // 64) * 64)
        number = _seeded(lambda: torch.randint(2**63 - 1, ()))
        kept = torch.ops.cpudist.masked(drawing, number, p)[..., :keys] if p else torch.ones(())

        def derived(attend: Any, kind: torch.dtype = dtype) -> list[torch.Tensor]:
            leaves = [tensor.detach().to(kind).requires_grad_() for tensor in tensors]  # noqa: B023
            output = _seeded(lambda: attend(*leaves))
            return [output.detach(), *torch.autograd.grad(output, leaves, gradient.to(kind))]  # noqa: B023

        wide = mask if mask is None or mask.dtype is torch.bool else mask.double()
        exact = derived(lambda *of: _by_definition(*of, wide, causal, kept.double()), torch.float64)  # noqa: B023
        ours = derived(partial(torch.ops.cpudist.attention, dropout_p=p, enable_gqa=True, **options))
        plain = derived(lambda *of: _by_definition(*of, wide, causal), torch.float64)  # noqa: B023
        # torch 2.8 leaves its flash kernel where heads share keys.
        torchs = derived(lambda *of: nn.functional.scaled_dot_product_attention(*_each_head(*of), **options))  # noqa: B023
        for one, right, other, same in zip(ours, exact, torchs, plain, strict=True):
            if right.norm() > 1e-5 * gradient.norm():
                error, its = (one - right).norm() / right.norm(), (other - same).norm() / same.norm()
                assert error < (limit if p or tensors[0].shape[-1] < 8 else 1.2 * its + 2**-24)
            else:
                assert one.norm() <= 0.01 * gradient.norm()


@WITH_KERNELS
def test_attention_has_every_gradient_on_any_number_of_threads() -> None:
    leaves = [torch.randn(2, 2, 70, 24, requires_grad=True) for _ in range(3)]
    attend = partial(torch.ops.cpudist.attention, *leaves, dropout_p=0.3, is_causal=True)
    outputs, before = [], torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        output = _seeded(attend)
        outputs.append([output, *torch.autograd.grad(output, leaves, torch.ones_like(output))])
    torch.set_num_threads(before)
    for one, other in zip(*outputs, strict=True):
        assert torch.equal(one, other)
    output, directions = _seeded(attend), torch.randn(3, 2, 2, 70, 24)
    found = torch.autograd.grad(output, leaves, directions, is_grads_batched=True, retain_graph=True)
    rows = [torch.autograd.grad(output, leaves, direction, retain_graph=True) for direction in directions]
    for one, *each in zip(found, *rows, strict=True):
        torch.testing.assert_close(one, torch.stack(each))
    twice = torch.autograd.grad(output, leaves, directions[0], create_graph=True)
    second = torch.autograd.grad(sum(one.square().sum() for one in twice), leaves)
    kept = torch.ops.cpudist.masked(torch.ones(2, 2, 70, 128), _seeded(lambda: torch.randint(2**63 - 1, ())), 0.3)
    exact = _by_definition(*leaves, None, True, kept[..., :70])
    right = torch.autograd.grad(exact, leaves, directions[0], create_graph=True)
    wanted = torch.autograd.grad(sum(one.square().sum() for one in right), leaves)
    for one, other in zip(second, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    hurt = leaves[0].detach().clone()
    hurt[0, 0, 3, 0] = torch.nan
    assert torch.ops.cpudist.attention(hurt, *leaves[1:])[0, 0, 3].isnan().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert _seeded(attend).dtype is torch.bfloat16


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_layers_have_torchs_gradients(dtype: torch.dtype, turned: bool) -> None:
    outputs = 72
    weight, bias = torch.randn((40, outputs) if turned else (outputs, 40), requires_grad=True), torch.randn(outputs)
    tokens = torch.randn(3, 25, 40, requires_grad=True)
    bias.requires_grad_()
    gradient = torch.randn(3, 25, outputs) * (torch.rand(3, 25, 1) > 0.7)  # zeros of both signs
    for leaves in ([tokens, weight, bias], [tokens, bias], [weight], [tokens, weight]):
        given = bias if len(leaves) != 2 or leaves[1] is bias else None
        for each in (tokens, weight, bias):
            each.requires_grad_(any(each is leaf for leaf in leaves))
        found = []
        for compute in (
            lambda: torch.ops.cpudist.linear(tokens, weight, given, turned, True),  # noqa: B023
            lambda: nn.functional.linear(tokens, weight.t() if turned else weight, given),  # noqa: B023
        ):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                output = compute()
            found.append([output, *torch.autograd.grad(output, leaves, gradient.to(dtype), retain_graph=True)])
            (first, *_) = torch.autograd.grad(output, leaves, gradient.to(dtype), create_graph=True)
            assert first.requires_grad is (tokens.requires_grad and weight.requires_grad), "one depends on the other"
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(
                one, other, rtol=0.02 if dtype is torch.bfloat16 else 1e-4, atol=1e-3 * other.abs().max().item()
            )
    output = torch.ops.cpudist.linear(tokens, weight, None, turned, True)
    assert "aten::index_select" in _operators(lambda: torch.autograd.grad(output, tokens, gradient))
    matrix = torch.randn(100, 70).to(dtype)
    assert torch.equal(torch.ops.cpudist.transposed(matrix), matrix.t())


@pytest.mark.parametrize("adapted_first", [False, True])
def test_linear_layers_in_adapters(adapted_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """test_exact.py has layers with hooks, parametrizations, and weights that are tied, frozen or given."""
    peft = pytest.importorskip("peft")
    monkeypatch.setattr(operators, "_copies", lambda: True)  # as on AMX
    found = []
    for use in (operators.restore, operators.use):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48))
        changes = [use, partial(peft.inject_adapter_in_model, peft.LoraConfig(target_modules=["0"], r=2))]
        for change in reversed(changes) if adapted_first else changes:
            change(model)
        model(torch.randn(5, 7, 48)).square().sum().backward()
        found.append([weight.grad for weight in model.parameters() if weight.requires_grad])
    assert len(found[0]) > 0
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("labelled", [0.0, 0.2, 1.0])
def test_cross_entropy_of_labelled_rows(labelled: float) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(16, operators._WIDE)

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = self.head(tokens)
            return nn.functional.cross_entropy(logits, labels, label_smoothing=0.1), logits

    model, tokens = Model(), torch.randn(60, 16)
    labels = torch.randint(operators._WIDE, (60,)).masked_fill(torch.rand(60) > labelled, -100)
    found = []
    for use in (operators.restore, operators.use):
        use(model)
        loss, logits = model(tokens, labels)
        loss.backward()
        found.append([loss, logits, model.head.weight.grad, model.head.bias.grad])
        model.zero_grad()
    torch.testing.assert_close(*found, equal_nan=True)
    names = _operators(lambda: model(tokens, labels))
    assert ("aten::index_select" in names) is (labelled < 0.5)
