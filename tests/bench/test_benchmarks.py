"""The programs of benchmarks/ run to their end. What they measure is not tested, and CI leaves them out."""

import sys
from pathlib import Path

import jobs
import pytest

pytestmark = [pytest.mark.job, pytest.mark.long]

FOLDER = Path(__file__).parents[2] / "benchmarks"


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
        (0, ["store_scale.py", "8"], "| 8 | "),
        (0, ["whole_jobs.py", "--quick"], "mpirun, ccl"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_runs(ranks: int, words: list[str], said: str) -> None:
    command = [sys.executable, str(FOLDER / words[0]), *words[1:]]
    result = jobs.completed(jobs.mpirun(ranks, *command) if ranks else command, timeout=300)
    assert said in result.stdout, result.output
