"""kill -9 of any rank at any moment, start-up included: no process stays, nothing of ours in /dev/shm.

Twice here; scripts/kill_ranks.sh does it as often as one likes.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from checks_run import JOBS, run

from cpudist import waiting

KILLS = int(os.environ.get("CPUDIST_TEST_KILLS", "2"))
RANKS = {name: int(name.split(", ")[1].split()[0]) for name in JOBS}
SHARED = Path("/dev/shm")


def orphans() -> set[str]:
    """Files in /dev/shm that no process has mapped or open.

    Without Intel MPI's: its library leaves one of a few hundred bytes behind where a rank dies while MPI starts.
    """
    names = {path.name for path in SHARED.iterdir() if not path.name.startswith("Intel_MPI_")}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            used = (process / "maps").read_text()
            used += "".join(os.readlink(entry) + "\n" for entry in (process / "fd").iterdir())
        except OSError:  # it ended meanwhile, or is not ours
            continue
        names -= {name for name in names if f"{SHARED}/{name}\n" in used}
    return names


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_leaves_nothing(number: int) -> None:
    name = list(JOBS)[number % len(JOBS)]
    victim, moment = random.randrange(RANKS[name]), random.uniform(0, 8)
    print(f"{name}: rank {victim} is killed after {moment:.2f} s")
    before = orphans()
    result = run(JOBS[name], "forever.py", str(victim), str(moment), timeout=100)  # fails where a process stays
    assert result.returncode != 0, result.output
    # Other jobs of this machine come and go: what nobody uses for a moment may be theirs.
    assert waiting.poll(lambda: not orphans() - before, 5), result.output
