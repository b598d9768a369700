"""docs/moving.md over two hosts: what replaces horovodrun's command and torchrun's, and the lines of their scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN

from cpudist.compiler import cache_folder

pytestmark = pytest.mark.job

CHECKS = Path(__file__).with_name("checks")
HOROVOD = CHECKS / "from_horovod.py"
PAGE = Path(__file__).parents[2] / "docs" / "moving.md"
CACHE = {"CPUDIST_CACHE": str(cache_folder())}


def _trained(folder: Path) -> None:
    """Both ranks have one another's gradients, parameters and mean."""
    first, second = ((folder / name).read_text() for name in "01")
    assert first.startswith("0 of 2 on ccl\n")
    assert first == second


def test_horovods_lines(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h0:1\nh1:1\n")
    command = [str(BIN / "cpudist"), "launch", "--hostfile", str(tmp_path / "hosts"), "--"]
    result = bed.run("h0", [*command, str(HOROVOD), str(tmp_path)], timeout=240, env=CACHE)
    assert result.returncode == 0, result.output
    _trained(tmp_path)


def test_the_check_has_the_pages_lines() -> None:
    rows = PAGE.read_text().partition("## Horovod")[2].splitlines()
    new = [row.split(" | ")[1] for row in rows if row.startswith("| `hvd.") or "= hvd." in row]
    lines = [code for cell in new for code in re.findall(r"`([^`]+[)a-z])`", cell) if "(" in code or "world." in code]
    assert len(lines) >= 4
    assert [line for line in lines if line not in HOROVOD.read_text()] == []


def test_torchruns_command_on_each_of_two_hosts(bed: Bed, tmp_path: Path) -> None:
    command = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "h0:29400", "--no-python", str(BIN / "cpudist-train")]
    command += [str(CHECKS / "from_torchrun.py"), str(tmp_path)]
    other = bed.start("h1", command, tmp_path / "h1.log", CACHE)
    result = bed.run("h0", command, timeout=240, env=CACHE)
    assert result.returncode == 0, result.output + (tmp_path / "h1.log").read_text()
    assert other.wait(30) == 0, (tmp_path / "h1.log").read_text()
    _trained(tmp_path)
