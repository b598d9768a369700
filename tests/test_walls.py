"""What a folder's docstring says that it must not know is what `lint-imports` checks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import cpudist

PACKAGE = Path(cpudist.__file__).parent
PYPROJECT = PACKAGE.parent / "pyproject.toml"

# The words of the docstrings, as modules.
MODULES = {
    "torch": {"torch"},
    "MPI": {"mpi4py"},
    "transformers": {"transformers", "accelerate"},
    "process groups": {"cpudist.backends.process_group", "cpudist.backends.ccl", "cpudist.backends.gloo"},
    "environments": {"cpudist.environments"},
    "rendezvous": {"cpudist.rendezvous"},
    "backends": {"cpudist.backends"},
    "jobs": {"cpudist.job"},
    "optimization": {"cpudist.optimization"},
    "Trainer's patches": {"cpudist.huggingface"},
    "recipes": {"cpudist.training"},
    "command lines": {"cpudist.cli"},
}


def _said(folder: Path) -> set[str] | None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    sentence = re.search(r"must not know ([^.]*)\.", " ".join(docstring.split()))
    return None if sentence is None else set().union(*(MODULES[word] for word in re.split(", | or ", sentence[1])))


def test_every_wall_that_is_said_is_checked() -> None:
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    checked = {
        contract["source_modules"][0].removeprefix("cpudist."): set(contract["forbidden_modules"])
        for contract in contracts
        if contract["type"] == "forbidden"
    }
    folders = [path.parent for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "cli"]
    assert len(folders) > 8
    for folder in folders:
        said = _said(folder)
        assert said is not None, f"the docstring of {folder.name}/ does not say what it must not know"
        assert said <= checked[folder.name], folder.name


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by these, in one environment this file and in another one that."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
