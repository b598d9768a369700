"""Products of bfloat16 matrices, as on a CPU without bfloat16 kernels."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import cpudist
from cpudist.optimization import choice, precision, products
from cpudist.topology.kernel_files import Files

pytestmark = pytest.mark.versions


@pytest.fixture
def on_old_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU for which oneDNN has no bfloat16 kernels, as far as cpudist can see."""
    monkeypatch.setattr(products, "missing", lambda: True)
    yield
    if products.in_float32.cache_info().currsize:
        products.in_float32()._destroy()
        products.in_float32.cache_clear()


def _numbers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype).requires_grad_()


def _calls(run: Callable[[], object]) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events()]


def _products(dtype: torch.dtype) -> list[torch.Tensor]:
    """Return results of linear layers and attention's products, and the gradients of their operands."""
    matrices = [_numbers(5, 7, dtype=dtype), _numbers(7, 3, dtype=dtype), _numbers(3, dtype=dtype)]
    batches = [_numbers(2, 5, 7, dtype=dtype), _numbers(2, 7, 3, dtype=dtype), _numbers(2, 5, 3, dtype=dtype)]
    results = [
        matrices[0] @ matrices[1],
        torch.nn.functional.linear(matrices[0], matrices[1].t(), matrices[2]),
        torch.addmm(matrices[2], *matrices[:2], beta=0.5, alpha=2),
        batches[0] @ batches[1],
        torch.baddbmm(batches[2], *batches[:2], beta=2, alpha=0.5),
    ]
    torch.stack([result.float().square().sum() for result in results]).sum().backward()
    return [result.detach() for result in results] + [operand.grad for operand in matrices + batches]


def test_products_and_their_gradients_are_those_of_float32_rounded(on_old_cpu: None) -> None:
    before = [_products(dtype) for dtype in (torch.bfloat16, torch.float32)]
    assert choice.multiply(torch.bfloat16) == [choice.IN_FLOAT32]
    after = [_products(dtype) for dtype in (torch.bfloat16, torch.float32)]
    for old, new in zip(before[0], after[0], strict=True):
        assert new.dtype is torch.bfloat16
        torch.testing.assert_close(new, old, rtol=2**-6, atol=2**-5)
    for old, new in zip(before[1], after[1], strict=True):
        assert torch.equal(new, old)
    # Rounded once, at the end.
    one, other = _numbers(64, 300), _numbers(300, 64)
    assert torch.equal(one @ other, (one.float() @ other.float()).bfloat16())
    assert "aten::_to_copy" in _calls(lambda: one.detach() @ other.detach())


def test_errors_stay_those_of_torch(on_old_cpu: None) -> None:
    choice.multiply(torch.bfloat16)
    low, high = torch.ones(3, 2).bfloat16(), torch.ones(2, 2)
    for operands, message in (
        ((low, low), "cannot be multiplied"),
        ((low, high), "same dtype"),
        ((low, low[0]), "must be a matrix"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.mm(*operands)


@pytest.mark.skipif(products.missing(), reason="this CPU has no bfloat16 kernels")
def test_a_cpu_with_kernels_keeps_them() -> None:
    assert choice.multiply(torch.bfloat16) == []
    one = _numbers(8, 8).detach()
    assert "aten::_to_copy" not in _calls(lambda: one @ one)


def test_convolutions_compute_in_float32_and_one_line_says_so(
    on_old_cpu: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """PyTorch's own convolutions in bfloat16 take 25 to 30 times as long there."""
    for layer in (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.ConvTranspose3d):
        model = torch.nn.Sequential(layer(2, 2, 1), torch.nn.Flatten())
        cpudist.optimize(model, dtype=torch.bfloat16, ipex=False)
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        said = capfd.readouterr().err
        assert "many times slower on this CPU: computing in float32" in said, layer
        assert "bfloat16 parameters" not in said
    cpudist.optimize(torch.nn.Linear(4, 4), dtype=torch.bfloat16, ipex=False)
    said = capfd.readouterr().err
    assert "bfloat16 parameters" in said, "products of matrices are as fast as in float32"
    assert choice.IN_FLOAT32 in said


@pytest.mark.parametrize(
    ("line", "has"),
    [
        ("flags\t\t: fpu avx2", False),  # an old x86
        ("flags\t\t: fpu avx2 avx512f avx512bw", False),  # AVX-512 that has no bfloat16
        ("flags\t\t: fpu avx512_bf16", True),
        ("flags\t\t: fpu amx_tile amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("model name\t: a processor", False),
    ],
)
def test_processors_with_arithmetic_for_bfloat16(tmp_path: Path, line: str, has: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(f"processor\t: 0\n{line}\n")
    assert precision.has_bf16(Files(tmp_path)) is has
