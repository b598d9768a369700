"""Every public name has an example in its docstring, and the examples run as they stand."""

import doctest
import inspect
import sys
from functools import reduce
from pathlib import Path

import jobs
import pytest

import cpudist

NAMES = sorted({*cpudist.__all__} - {"__version__", "backends"})
NAMES += [f"backends.{name}" for name in ("get", "names", "register")]
CHECK = str(Path(__file__).parent / "checks/docstrings.py")


@pytest.mark.parametrize("name", NAMES)
def test_it_has_an_example(name: str) -> None:
    text = inspect.getdoc(reduce(getattr, name.split("."), cpudist))
    assert doctest.DocTestParser().get_examples(text or "")


@pytest.mark.job
def test_examples_run_on_two_ranks_and_that_of_a_notebook_by_itself(tmp_path: Path) -> None:
    names = [name for name in NAMES if name != "notebook_launcher"]
    for command in (jobs.mpirun(2, sys.executable, CHECK, *names), [sys.executable, CHECK, "notebook_launcher"]):
        jobs.completed(command, timeout=120, cwd=tmp_path)
