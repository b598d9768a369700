"""`cpudist bench` and the programs of benchmarks/ run, and their statistics. What they measure is not tested."""

import json
import sys
from functools import partial
from pathlib import Path

import jobs
import pytest

from cpudist.bench.report import Comparison, tables
from cpudist.bench.timing import Timings, Turns, take_turns

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def steady(*medians: float) -> Timings:
    """Rounds of three calls around each median."""
    return Timings(tuple((median * 0.9, median, median * 1.2) for median in medians))


def test_candidates_take_turns_and_warm_up_is_not_counted() -> None:
    log: list[tuple[str, int]] = []

    def candidate(name: str, seconds: float, calls: int) -> list[float]:
        log.append((name, calls))
        return [100.0, 100.0, seconds, seconds, seconds]

    turns = Turns(rounds=2, calls=3, warm_up=2)
    timings = take_turns({"a": partial(candidate, "a", 1.0), "b": partial(candidate, "b", 2.0)}, turns)
    assert log == [("a", 5), ("b", 5)] * 2
    assert timings["a"] == Timings(((1.0,) * 3, (1.0,) * 3))
    assert timings["b"].median == 2.0


def test_tables_have_times_and_ratios() -> None:
    times = {"ccl": steady(2e-5), "gloo": steady(1e-4), "memory copy": steady(1e-5)}
    sums = Comparison("allreduce", "float32", times, (("gloo", "ccl"), ("ccl", "memory copy")), 1 << 10)
    ratios = sums.as_dict()["ratios"]
    assert ratios["gloo/ccl"]["median"] == pytest.approx(5)
    steps = {"no communication": steady(1.0, 4.0), "powersgd": steady(2.0, 8.0)}  # the machine slows down
    step = Comparison("training step", "bfloat16", steps, tuple((name, "no communication") for name in steps))
    assert step.as_dict()["ratios"]["powersgd/no communication"]["round_medians"] == [2.0, 2.0]
    shown = [line.split() for line in tables([sums, step]).splitlines() if line]
    assert shown[0] == ["allreduce,", "float32"]
    assert shown[2] == ["1", "KB", "20", "us", "100", "us", "10", "us"]
    assert shown[-1] == ["powersgd", "4.8", "s", "(2-8)", "2", "(2-2)"]


@pytest.mark.job
def test_collectives_under_mpirun(tmp_path: Path) -> None:
    kept, drawn = tmp_path / "out" / "collectives.json", tmp_path / "collectives.png"
    command = [str(jobs.BIN / "cpudist"), "bench", "collectives", "--quick", "--json", str(kept), "--plot", str(drawn)]
    result = jobs.completed(jobs.mpirun(2, *command), timeout=400)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert result.stdout.count("allreduce, float32") == 1, result.output  # rank 0 alone prints
    content = json.loads(kept.read_text())
    assert (content["environment"]["world_size"], content["environment"]["transport"]) == (2, "mpi")
    measured = {(entry["operation"], entry["dtype"]): entry for entry in content["results"]}
    for dtype in ("float32", "bfloat16"):
        assert set(measured["allreduce", dtype]["seconds"]) == {"ccl", "gloo", "memory copy"}
    for operation in ("all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single"):
        assert set(measured[operation, "float32"]["seconds"]) == {"ccl", "gloo"}
    for entry in content["results"]:
        for timings in entry["seconds"].values():
            assert 0 < timings["spread"][0] <= timings["spread"][1]
        assert all(ratio["median"] > 0 for ratio in entry["ratios"].values())


@pytest.mark.job
def test_one_rank_has_nobody_to_talk_to() -> None:
    result = jobs.run([str(jobs.BIN / "cpudist"), "bench", "collectives"], timeout=120)
    assert result.returncode == 2, result.output
    assert "mpirun -n 2" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.job
@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (0, ["agent_scale.py", "8"], "| 8 | "),
        (2, ["allreduce_rivals.py", "--quick"], "ccl / mpi4py"),
        (0, ["busy_neighbour.py"], "bytes of each thread: "),
        (0, ["computing_threads.py"], "bytes of each thread: "),
        (2, ["ddp_step.py", "--quick"], "gloo, 100 MB, views"),
        (0, ["optimize.py", "--quick"], "optimize, bfloat16"),
        (2, ["pinning.py"], "pinned (1 thread"),
        (0, ["rounding.py", "--steps", "20"], "float64, 3 ranks"),
        (2, ["saving_cost.py", "--rounds", "1"], "pause in the background, of a copy"),
        (0, ["serial_share.py", "gpt2", "--quick"], "optimize, float32"),
        (2, ["small_calls.py"], "4 bytes beside 96 MB"),
        (0, ["steps.py", "--quick", "small"], "factors copied"),
        (0, ["store_scale.py", "8"], "| 8 | "),
        (0, ["whole_jobs.py", "--quick"], "mpirun, ccl"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_program_of_benchmarks_runs_to_its_end(ranks: int, words: list[str], said: str) -> None:
    command = [sys.executable, str(BENCHMARKS / words[0]), *words[1:]]
    result = jobs.completed(jobs.mpirun(ranks, *command) if ranks else command, timeout=300)
    assert said in result.stdout, result.output
