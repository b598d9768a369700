"""A notebook on each of two hosts: one job, also with one process on each."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from bed import Bed

from cpudist.compiler import cache_folder

pytestmark = pytest.mark.job

TESTS = Path(__file__).resolve().parents[1]
EXECUTE = TESTS / "notebook" / "checks" / "execute.py"
LAUNCHES = Path(__file__).with_name("checks") / "nodes.py"
# ssh hands no variables on.
VARIABLES = {
    "CPUDIST_CACHE": str(cache_folder()),
    **{name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")},
}


def on_both(first: list[str], second: list[str]) -> list[str]:
    """A command for h0 that runs `first` there and `second` on h1, which starts earlier."""
    there = ["env", f"--chdir={Path.cwd()}", *(f"{name}={value}" for name, value in VARIABLES.items()), *second]
    over_ssh = f"ssh h1 {shlex.quote(shlex.join(there))} >&2"
    return ["sh", "-c", f"{over_ssh} & {shlex.join(first)}; status=$?; wait; exit $status"]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_example_on_two_nodes(bed: Bed, processes: int) -> None:
    first, second = ([sys.executable, str(EXECUTE), str(processes), "2", str(node), "h0"] for node in (0, 1))
    result = bed.run("h0", on_both(first, second), timeout=240, env=VARIABLES)
    assert result.returncode == 0, result.output
    found = re.search(rf"{2 * processes} processes, accuracy ([\d.]+)", result.stdout)
    assert found, result.output
    assert float(found[1]) > 0.75


def test_a_rank_that_fails_on_one_node_is_shown_on_both(bed: Bed) -> None:
    first, second = ([sys.executable, str(LAUNCHES), str(node), "fails"] for node in (0, 1))
    result = bed.run("h0", on_both(first, second), timeout=120, env=VARIABLES)
    assert result.returncode == 0, result.output
    assert result.stdout.splitlines()[1] == "fails raises RankFailed rank 1 on h1 failed:", result.output
    assert "ValueError: no such thing" in result.stdout
    assert "fails raises ValueError no such thing" in result.stderr


@pytest.mark.long
def test_one_launch_after_the_other_on_two_nodes(bed: Bed) -> None:
    """Each launch starts as soon as the one before has ended on this node, whatever the other node still does."""
    cases = ["function", "arguments", "nodes", "restart", "interrupt", "restart", "number"]
    first, second = ([sys.executable, str(LAUNCHES), str(node), *cases] for node in (0, 1))
    result = bed.run("h0", on_both(first, second), timeout=200, env=VARIABLES)
    assert result.returncode == 0, result.output
    here, there = (
        re.findall(r"^(\w+) (?:gives|raises) (\w+) ?(.*)$", output, re.MULTILINE)
        for output in (result.stdout, result.stderr)
    )
    assert [case for case, *_ in here] == [case for case, *_ in there] == cases, result.output
    failed, user = "RankFailed", "UserError"
    assert [kind for _, kind, _ in here] == [failed] * 3 + ["ranks", failed, "ranks", "StartupTimeout"], result.output
    assert [kind for _, kind, _ in there] == [user] * 3 + ["None", "Interrupted", "None", user], result.output
    for values, (_, _, says), (_, _, other) in zip(("'other' 'fails'", "0.1 0.0", "3 2"), here, there, strict=False):
        assert all(value in text for value in values.split() for text in (says, other)), result.output
    assert all(says == "2, attempt 1" for _, kind, says in here if kind == "ranks")
