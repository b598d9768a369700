"""docs/moving.md over two hosts: what replaces horovodrun's command and its script's lines, and torchrun's command."""

import re
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN, launch, train

pytestmark = pytest.mark.job

CHECKS = Path(__file__).with_name("checks")
HOROVOD = CHECKS / "from_horovod.py"
PAGE = Path(__file__).parents[2] / "docs" / "moving.md"


def test_horovods_lines(bed: Bed, tmp_path: Path) -> None:
    """Both ranks have one another's gradients, parameters and mean."""
    command = launch("--hostfile", bed.hostfile(1), "--", str(HOROVOD), str(tmp_path))
    result = bed.run("h0", command, timeout=240)
    assert result.returncode == 0, result.output
    first, second = ((tmp_path / name).read_text() for name in "01")
    assert first.startswith("0 of 2 on ccl\n")
    assert first == second


def test_the_check_has_the_pages_lines() -> None:
    rows = PAGE.read_text().partition("## Horovod")[2].splitlines()
    new = [row.split(" | ")[1] for row in rows if row.startswith("| `hvd.") or "= hvd." in row]
    lines = [code for cell in new for code in re.findall(r"`([^`]+[)a-z])`", cell) if "(" in code or "world." in code]
    assert len(lines) >= 4
    assert [line for line in lines if line not in HOROVOD.read_text()] == []


def test_torchruns_command_on_each_of_two_hosts(bed: Bed, tmp_path: Path) -> None:
    command = [str(BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "h0:29400", "--no-python", *train(str(CHECKS / "greets.py"), str(tmp_path))]
    log = tmp_path / "h1.log"
    other = bed.start("h1", command, log)
    result = bed.run("h0", command, timeout=240)
    assert (result.returncode, other.wait(30)) == (0, 0), result.output + log.read_text()
    assert {path.read_text() for path in tmp_path.glob("0-[01]")} == {"h0", "h1"}
    assert (result.stdout + log.read_text()).count("rank 0 of 2 on ") == 1, result.output
