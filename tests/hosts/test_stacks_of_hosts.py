"""`cpudist stacks --hostfile`: the ranks of all hosts, and which hosts do not answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN

pytestmark = pytest.mark.job

ASKS = """
import subprocess, sys
import torch.distributed as dist

dist.barrier()
if dist.get_rank() == 0:
    asked = subprocess.run([*sys.argv[1:]], capture_output=True, text=True)
    print(asked.stdout, asked.stderr, asked.returncode, sep="")
dist.barrier()
"""


def test_the_ranks_of_all_hosts_are_one_job(bed: Bed, tmp_path: Path) -> None:
    script, hosts, more = (tmp_path / name for name in ("asks.py", "hosts", "more"))
    script.write_text(ASKS)
    hosts.write_text("h0 slots=1\nh1 slots=1\n")
    more.write_text("h0\nh1\nnowhere\n")
    cpudist, ask = str(BIN / "cpudist"), ["stacks", "--hostfile"]
    job = [cpudist, "launch", "--hostfile", str(hosts), "--", "--backend", "gloo", str(script)]
    shown = bed.run("h0", [*job, cpudist, *ask, str(more)], timeout=120)
    lines = shown.stdout.splitlines()
    assert re.fullmatch(r"job of h0:\d+: 2 of 2 ranks are on these hosts", lines[0]), shown.output
    assert re.fullmatch(r"rank 0 on h0 \(process \d+\): in asks\.py:7.*", lines[1]), shown.output
    assert re.fullmatch(r"rank 1 on h1 \(process \d+\): in barrier #2 \(asks\.py:9\) for [\d.]+ s", lines[2]), (
        shown.output
    )
    assert re.fullmatch(rf"cpudist: {more}, line 3: nowhere ssh cannot reach it: .*; correct its name, .*", lines[3])
    assert lines[4:] == ["2"], shown.output
    none = bed.run("h0", [cpudist, *ask, str(hosts)], timeout=60)
    assert (none.returncode, none.stdout) == (2, ""), none.output
    assert "no rank of yours runs on these hosts" in none.stderr
