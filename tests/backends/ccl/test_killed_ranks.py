"""kill -9 of any rank at any moment, start-up included: no process stays, nothing of ours in /dev/shm.

Once under each launcher here; CPUDIST_TEST_KILLS=50 repeats it as often.
"""

import os
import random
from pathlib import Path

import pytest
from checks_run import JOBS, run
from jobs import orphans

from cpudist import waiting

pytestmark = pytest.mark.job

KILLS = int(os.environ.get("CPUDIST_TEST_KILLS", "3"))
NAMES = ["intel-mpi, 3 ranks", "mpich, 2 ranks", "torchrun, 2 ranks"]
RANKS = {name: int(name.split(", ")[1].split()[0]) for name in NAMES}


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_leaves_nothing(number: int, tmp_path: Path) -> None:
    name = NAMES[number % len(NAMES)]
    victim, moment = random.randrange(RANKS[name]), random.uniform(0, 6)
    print(f"{name}: rank {victim} is killed after {moment:.2f} s")
    before = orphans()
    words = [str(victim), str(moment), str(tmp_path / "killed")]
    result = run(JOBS[name], "forever.py", *words, timeout=100)  # fails where a process stays
    assert result.returncode != 0, result.output
    assert (tmp_path / "killed").exists(), f"the job has ended by itself\n{result.output}"
    # Other jobs of this machine come and go: what nobody uses for a moment may be theirs.
    assert waiting.poll(lambda: not orphans() - before, 5), result.output
