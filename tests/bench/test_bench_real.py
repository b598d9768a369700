"""`cpudist bench` under a real launcher measures and writes all figures. Their values are not tested."""

import json
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.job


def test_collectives_under_mpirun(tmp_path: Path) -> None:
    kept, drawn = tmp_path / "out" / "collectives.json", tmp_path / "collectives.png"
    command = [str(jobs.BIN / "cpudist"), "bench", "collectives", "--quick", "--json", str(kept), "--plot", str(drawn)]
    result = jobs.completed(jobs.mpirun(2, *command), timeout=400)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert result.stdout.count("allreduce, float32") == 1, result.output  # rank 0 alone prints
    assert "cpudist bench: allreduce float32 1 KB" in result.stderr, result.output

    content = json.loads(kept.read_text())
    assert content["benchmark"] == "collectives"
    assert content["environment"]["world_size"] == 2
    assert content["environment"]["transport"] == "mpi"
    assert content["environment"]["cpus"]
    measured = {(entry["operation"], entry["dtype"]): entry for entry in content["results"]}
    for dtype in ("float32", "bfloat16"):
        assert set(measured["allreduce", dtype]["seconds"]) == {"ccl", "gloo", "memory copy"}
    for operation in ("all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"):
        assert set(measured[operation, "float32"]["seconds"]) == {"ccl", "gloo"}
    for entry in content["results"]:
        for timings in entry["seconds"].values():
            assert 0 < timings["spread"][0] <= timings["spread"][1]
        assert all(ratio["median"] > 0 for ratio in entry["ratios"].values())


def test_one_rank_has_nobody_to_talk_to() -> None:
    result = jobs.run([str(jobs.BIN / "cpudist"), "bench", "collectives"], timeout=120)
    assert result.returncode == 2, result.output
    assert "mpirun -n 2" in result.stderr
    assert "Traceback" not in result.stderr
