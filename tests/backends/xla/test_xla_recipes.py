"""The recipes on xla: results are those of other backends, and programs are compiled for a few shapes only."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from jobs import mpirun, run

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

CHECK = Path(__file__).parent / "checks" / "recipes_in_turn.py"
BOUND = 600.0
MESHES = ["data=4", "fsdp=4", "model=4", "data=2,model=2"]
# Of a length, there is a graph for batches with padding and one for those without, since transformers asks; 4 lengths.
_LATE = {"classify": 8, "qa": 2}


@pytest.mark.parametrize(
    ("ranks", "recipes", "ways"),
    [
        (2, "clm,classify", ["xla", "made up", "ccl"]),
        (1, "clm,images", ["data=2,model=2", "gloo"]),
        pytest.param(2, "qa,mlm,images", ["xla", "ccl"], marks=pytest.mark.long),
        pytest.param(1, "clm,classify,qa,mlm,images", ["xla", "gloo"], marks=pytest.mark.long),
        *(
            pytest.param(1, names, [*MESHES, "gloo"], marks=pytest.mark.long)
            for names in ("clm,mlm,images", "classify,qa")
        ),
    ],
)
def test_recipes_come_to_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stdlib_data: Path, ranks: int, recipes: str, ways: list[str]
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setenv("CPU_NUM_DEVICES", "4" if "=" in ways[0] else "1")
    command = [sys.executable, str(CHECK), str(stdlib_data), str(tmp_path), recipes, *ways]
    result = run(mpirun(ranks, *command) if ranks > 1 else command, timeout=BOUND)
    assert result.returncode == 0, result.output
    assert "--optim adamw_torch in the place of adamw_torch_fused" in result.stderr, result.output
    results = json.loads(result.stdout.splitlines()[-1])
    assert [*results] == ways
    expected = results.pop(ways[-1])
    assert expected.keys() == set(recipes.split(","))
    for way, found in results.items():
        for recipe, wanted in expected.items():
            assert len(wanted["losses"]) == 8
            assert {"eval_loss"} < wanted["metrics"].keys()
            assert found[recipe]["losses"] == pytest.approx(wanted["losses"], abs=1e-3), (way, recipe)
            assert found[recipe]["metrics"] == pytest.approx(wanted["metrics"], rel=1e-3), (way, recipe)
            gradients = {"xla": "through the host, over ccl", "made up": "by the runtime"}.get(way)
            assert found[recipe]["gradients"] == gradients
            assert found[recipe]["late"] <= _LATE.get(recipe, 0), (way, recipe)
