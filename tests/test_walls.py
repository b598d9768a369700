"""`lint-imports` checks the packages that each folder must not import by its docstring."""

import ast
import re
import tomllib
from pathlib import Path

import cpudist

PACKAGE = Path(cpudist.__file__).parent

# Words of the docstrings -> modules.
MODULES = {
    "torch": {"torch"},
    "MPI": {"mpi4py"},
    "transformers": {"transformers", "accelerate"},
    "process groups": {"cpudist.backends.process_group", "cpudist.backends.ccl", "cpudist.backends.gloo"},
    "launchers": {"cpudist.launchers"},
    "rendezvous": {"cpudist.rendezvous"},
    "backends": {"cpudist.backends"},
    "jobs": {"cpudist.job"},
    "observers": {"cpudist.observability"},
    "optimization": {"cpudist.optimization"},
    "Trainer's patches": {"cpudist.huggingface"},
    "programs": {"cpudist.training"},
    "command lines": {"cpudist.cli"},
}


def _said(folder: Path) -> set[str] | None:
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    sentence = re.search(r"must not import ([^.]*)\.", " ".join(docstring.split()))
    return None if sentence is None else set().union(*(MODULES[word] for word in re.split(", | or ", sentence[1])))


def test_what_a_docstring_forbids_is_checked() -> None:
    settings = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    checked = {
        contract["source_modules"][0].removeprefix("cpudist."): set(contract["forbidden_modules"])
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "forbidden"
    }
    folders = [path.parent for path in PACKAGE.glob("*/__init__.py") if path.parent.name != "cli"]
    assert len(folders) > 8
    for folder in folders:
        said = _said(folder)
        assert said is not None, f"the docstring of {folder.name}/ does not say what it must not import"
        assert said <= checked[folder.name], folder.name


def test_no_backend_of_an_entry_point_is_named_outside_its_folder() -> None:
    """xla declares its options, hooks and findings to commands, doctor, notebooks and Trainer as any other package."""
    guest = PACKAGE / "backends" / "xla"
    # Variables of the environment, which are set or handed on, and names in accelerate and transformers.
    variables = re.compile(r"\"(USE_TORCH_)?XLA_?\"|\b(is)?_torch_xla_available\b")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if guest not in path.parents
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"xla(?!bel)", variables.sub("", line), re.IGNORECASE)
    ]
    assert found == []
