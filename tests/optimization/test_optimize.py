"""`cpudist.optimize` in one process: what it changes, what it must leave alone, what it says."""

import platform
import sys
import warnings
from pathlib import Path

import jobs
import pytest
import torch

import cpudist
from cpudist import job
from cpudist.optimization import ipex, precision
from cpudist.pinning.preload import wanted_allocator

pytestmark = pytest.mark.versions

WITH_IPEX = pytest.mark.skipif(ipex.missing() is not None, reason=ipex.missing() or "")


def _adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def test_says_what_it_chose(alone: None, capfd: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    cpudist.optimize(model, _adamw(model), dtype=torch.bfloat16, ipex=False)
    kernels = ["native", "fused AdamW", "freed memory kept"]
    chosen = [*kernels, *(["bfloat16 autocast"] if precision.fitting(torch.bfloat16) is torch.bfloat16 else [])]
    assert job.require().record.optimizations == chosen
    out, err = capfd.readouterr()
    assert err.startswith(f"cpudist: optimize: {', '.join(chosen)} (Intel's extension is not asked for)")
    assert (out, err.count("\n")) == ("", 1)


_KEPT = """
import resource, torch, cpudist
from cpudist.optimization.native import keep_freed
for keep in (False, True):
    cpudist.optimize(torch.nn.Linear(2, 2), ipex=False, keep_memory=keep)
    faults = []
    for _ in range(60):  # the heap takes a while to find its size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.empty(1 << 24).fill_(1.0)  # 64 MB
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    # The kernel clears at least 32 pages each time, of the largest size. Other pages of the process add to some times.
    print(keep_freed() if keep else "", min(faults[20:]) < 16)
"""


@pytest.mark.job
def test_freed_memory_is_kept_and_not_by_another_allocator() -> None:
    assert jobs.completed([sys.executable, "-c", _KEPT], 100).stdout.splitlines() == [" False", "True True"]
    library = wanted_allocator({})
    if library is None:
        pytest.skip("tcmalloc (Debian: libtcmalloc-minimal4) is not installed")
    done = jobs.completed([sys.executable, "-c", _KEPT], 100, {"LD_PRELOAD": str(library)})
    assert done.stdout.splitlines()[1].startswith("False"), done.output


def test_who_sets_the_allocator_has_decided(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    cpudist.optimize(torch.nn.Linear(2, 2), ipex=False)
    assert "freed memory kept" not in job.require().record.optimizations


def test_types_and_extensions_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    model = torch.nn.Linear(2, 2)
    for dtype, named in ((torch.float16, "use bfloat16"), (torch.int8, "int8")):
        with pytest.raises(cpudist.UserError, match=named):
            cpudist.optimize(model, None, dtype=dtype)
    if ipex.missing():
        with pytest.raises(cpudist.UserError, match="intel_extension_for_pytorch"):
            cpudist.optimize(model, None, ipex=True)
    precision.compute_in(model, torch.bfloat16)
    with pytest.raises(cpudist.UserError, match=r"torch\.jit\.script .* before cpudist\.optimize"):
        torch.jit.script(torch.nn.Sequential(model))


@pytest.mark.parametrize("timed", [False, True])
def test_bfloat16_where_it_is_slow_is_float32(
    alone: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], timed: bool
) -> None:
    if timed:  # an Arm CPU, of which only a measurement tells; without oneDNN products are slow here too
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert precision._has_fast_product() == torch.ops.mkldnn._is_mkldnn_bf16_supported()
        precision._has_fast_product.cache_clear()
        with torch.backends.mkldnn.flags(enabled=False):
            assert not precision._has_fast_product()
    model = torch.nn.Linear(2, 2)
    cpudist.optimize(model, None)  # Intel's extension, when it is imported, wants the operator that is replaced here
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: timed)
    model.register_forward_hook(lambda module, inputs, output: computed_in.append(output.dtype))
    computed_in: list[torch.dtype] = []
    cpudist.optimize(model, None, dtype=torch.bfloat16)
    model(torch.ones(1, 2))
    assert computed_in == [torch.float32]
    assert "bfloat16 autocast" not in job.require().record.optimizations
    assert precision.IN_FLOAT32 in capfd.readouterr().err
    precision._has_fast_product.cache_clear()


@WITH_IPEX
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_intels_kernels_give_the_same_gradients(dtype: torch.dtype) -> None:
    """Importing the extension replaces kernels everywhere, layer norm's too, so this compares with the formula."""
    model = torch.nn.LayerNorm(16)
    cpudist.optimize(model, _adamw(model))
    x = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
    low = x.detach().to(dtype).requires_grad_()
    weight = torch.randn(16, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (torch.nn.functional.layer_norm(low, (16,), weight.to(dtype)).float() ** 2).sum().backward()
    normal = (x - x.mean(1, keepdim=True)) / torch.sqrt(x.var(1, unbiased=False, keepdim=True) + 1e-5)
    ((normal * weight) ** 2).sum().backward()
    tolerance = 1e-4 if dtype is torch.float32 else 0.3
    torch.testing.assert_close(low.grad.double(), x.grad, rtol=tolerance, atol=tolerance)


# In an own process: the extension cannot be unloaded. Without caches: one may hold what was compiled without it.
_COMPILES = """
import sys, torch, cpudist
from torch.nn import LayerNorm, Linear, Sequential, functional
from cpudist import job
from cpudist.optimization import kernels
cpudist.init("gloo")
model = Sequential(Linear(4, 8), LayerNorm(8), Linear(8, 1))
if sys.argv[1] == "with":
    cpudist.optimize(model, torch.optim.SGD(model.parameters()))
    try:
        kernels.check_compiling()
    except cpudist.UserError as error:
        assert "gradients" in str(error)
    else:
        sys.exit("both at once were allowed")
else:
    assert "gradients" in kernels.why_not_ipex(compiled=True)
    kernels.check_compiling()
    cpudist.optimize(model, torch.optim.SGD(model.parameters()), ipex=False)
compiled = torch.compile(model)
x = torch.randn(3, 4)
functional.mse_loss(compiled(x), torch.ones(3, 1)).backward()
print(job.require().record.optimizations[0], all(p.grad is not None and bool(p.grad.any()) for p in model.parameters()))
"""


@WITH_IPEX
@pytest.mark.job
@pytest.mark.parametrize(("intels", "first"), [("with", "ipex"), ("without", "native")])
def test_compiled_models_have_gradients(tmp_path: Path, intels: str, first: str) -> None:
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = jobs.run([sys.executable, "-c", _COMPILES, intels], 200, variables)
    assert f"{first} True" in done.stdout.splitlines(), done.output  # Intel's extension adds lines


@WITH_IPEX
def test_intels_extension_is_the_first_choice(alone: None, capfd: pytest.CaptureFixture[str]) -> None:
    nn = torch.nn
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 32), nn.LayerNorm(32)]
    made = nn.Sequential(*layers, nn.Linear(32, 10)).eval()  # as a pretrained model is
    model, optimizer = cpudist.optimize(made, _adamw(made))
    assert model.training is False
    assert job.require().record.optimizations[0] == "ipex"
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1), "none of its notes"
    moved = model.to("cpu:0").train()  # as accelerate does, what corrupts prepacked weights
    images, labels = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 10
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(moved(images), labels)
        loss.backward()
        optimizer.step()
    assert loss < 0.2
