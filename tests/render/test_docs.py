"""Documented commands: those of `cpudist render` run; the others are marked, or are what scripts/test.sh does."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# scripts/environment.sh runs these before every test run, the last two with another path.
INSTALLS = ("python3 -m venv", "pip install", "export CPUDIST_CACHE=", "cpudist build")


def commands(name: str) -> list[str]:
    """Return the commands of a page's blocks, each on one line."""
    blocks = re.findall(r"^```\n(.*?)^```$", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("name", ["kubernetes.md", "slurm.md"])
def test_every_command(name: str, text: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)  # for the example of a patch
    rendered = 0
    for command in commands(name):
        if command.startswith("cpudist render "):
            words, _, file = command.removeprefix("cpudist render ").partition(">")
            options, _, target = words.partition(" -- ")
            assert text(*shlex.split(options), target=("--", *shlex.split(target))).startswith("#"), command
            assert file.strip() in ("job.yaml", "job.sh")
            rendered += 1
        else:
            assert command.startswith(INSTALLS) or "# cluster" in command, command
    assert rendered
