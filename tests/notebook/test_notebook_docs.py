"""docs/notebooks.md: its shortest example runs, and its commands are those of the installation."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "notebooks.md").read_text()


@pytest.mark.job
def test_the_shortest_example(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:1]
    script = tmp_path / "cell.py"
    # A notebook shows the value of a cell's last line.
    script.write_text(re.sub(r"^(cpudist\.notebook_launcher.*)$", r"print(\1)", code, flags=re.MULTILINE))
    result = run([sys.executable, str(script)], timeout=120)
    assert result.returncode == 0, result.output
    assert result.stdout.splitlines()[-1] == "tensor([1., 1., 1.])", result.output


def test_every_command() -> None:
    """The first two are what scripts/environment.sh does."""
    first, second, third = PAGE.split("```\n")[1].splitlines()
    assert first == "pip install torch==2.13.0"
    assert second == "pip install '.[ccl,notebook,examples]' jupyterlab"
    assert third.endswith("# by hand; the tests execute it in a kernel")
    assert (ROOT / third.split()[2]).exists()
