"""Recipes on meshes of four CPU devices, each by its own table: data parallel, as FSDP, tensor parallel, and mixed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from jobs import run

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

CHECK = Path(__file__).parent / "checks" / "recipes_on_meshes.py"


ALL = ["data=4", "fsdp=4", "model=4", "data=2,model=2"]


@pytest.mark.parametrize(
    ("recipes", "meshes"),
    [
        ("images", ["data=2,model=2"]),
        pytest.param("clm,mlm,images", ALL, marks=pytest.mark.long),
        pytest.param("classify", ALL, marks=pytest.mark.long),
        pytest.param("qa", ALL, marks=pytest.mark.long),
    ],
)
def test_recipes_on_meshes_compute_as_on_one_device(
    tmp_path: Path, stdlib_data: Path, monkeypatch: pytest.MonkeyPatch, recipes: str, meshes: list[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setenv("CPU_NUM_DEVICES", "1")
    one = _losses(stdlib_data, tmp_path, recipes, ["one"])["one"]
    assert one.keys() == set(recipes.split(","))
    assert all(len(losses) == 20 for losses in one.values())
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    for mesh, found in _losses(stdlib_data, tmp_path, recipes, meshes).items():
        for recipe, losses in found.items():
            assert losses == pytest.approx(one[recipe], abs=2e-4), (mesh, recipe)


def _losses(data: Path, output: Path, recipes: str, meshes: list[str]) -> dict[str, dict[str, list[float]]]:
    result = run([sys.executable, str(CHECK), str(data), str(output), recipes, *meshes], timeout=400)
    assert result.returncode == 0, result.output
    losses: dict[str, dict[str, list[float]]] = json.loads(result.stdout.splitlines()[-1])
    return losses
