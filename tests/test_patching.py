"""Changes that are undone with a job, actions that follow a module's import, and the tables of docs/patches.md."""

import ast
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

import pytest

import cpudist
from cpudist import UserError
from cpudist.patching.on_import import after_import
from cpudist.patching.patch import Patch, apply
from cpudist.patching.undo import Changes


@pytest.mark.parametrize("there_before", [False, True])
def test_filters_that_a_script_adds_meanwhile_stay(there_before: bool) -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        if there_before:
            warnings.simplefilter("ignore")
        changes = Changes()
        for _ in range(2):  # wanted twice, and taken back once
            changes.ignored_warnings()
        warnings.filterwarnings("error", "the script's own")
        warnings.warn("not seen", stacklevel=1)
        changes.undo()
        assert [rule[0] for rule in warnings.filters] == ["error", *["ignore"] * there_before]


def test_at_once_or_when_the_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []
    after_import("sys", found.append)
    assert found == [sys]
    (tmp_path / "wanted_module.py").write_text("last = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    cancels = [after_import("wanted_module", lambda module: found.append(vars(module)["last"])) for _ in range(2)]
    cancels[0]()
    module = __import__("wanted_module")
    assert found == [sys, 1], "once, for the one that is not cancelled"
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    cancels[1]()
    assert sys.meta_path == before
    monkeypatch.delitem(sys.modules, "wanted_module")


@pytest.mark.parametrize(("end", "expected"), [("last = 1", [1]), ("1 / 0", []), ("cancel()\nlast = 1", [])])
def test_an_import_under_way(end: str, expected: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    def ask() -> Callable[[], None]:
        return after_import("late_module", lambda module: found.append(vars(module).get("last")))

    monkeypatch.setattr("builtins.ask", ask, raising=False)
    (tmp_path / "late_module.py").write_text(f"cancel = ask()\n{end}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    with suppress(ZeroDivisionError):
        assert type(__import__("late_module").__spec__).__name__ == "ModuleSpec"
    assert found == expected


_PACKAGE = Path(cpudist.__file__).parent
_PAGE = (_PACKAGE / "docs" / "patches.md").read_text(encoding="utf-8")


def _trees() -> Iterator[ast.Module]:
    return (ast.parse(path.read_text(encoding="utf-8")) for path in _PACKAGE.rglob("*.py"))


def _patches() -> Iterator[tuple[str, str, str]]:
    """Yield target, reason and end of every `Patch` in the source, also of modules that cannot be imported here."""
    for tree in _trees():
        constants = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Patch":
                given = dict(zip(("target", "why"), call.args, strict=False))
                given |= {keyword.arg or "": keyword.value for keyword in call.keywords}
                texts = (constants.get(ast.unparse(given[name]), given[name]) for name in ("target", "why"))
                target, why = (re.sub(r"{.*}", "*", ast.unparse(text)).strip("f'\"") for text in texts)
                yield target, why.replace("\\'", "'"), ast.literal_eval(given.get("until", ast.Constant("")))


@pytest.mark.versions
def test_the_documentation_shows_every_patch() -> None:
    """Each row names what is changed for one reason, in the words of the table, and nothing else."""
    rows = re.findall(r"^\| (`\D[^=]*?`) \| (.+?) \| (.*?)\|$", _PAGE, re.MULTILINE)
    shown = {(name, why, until.strip()) for names, why, until in rows for name in re.findall(r"`([^`]+)`", names)}
    there = {(target.partition(":")[2], why, until) for target, why, until in _patches()}
    assert len(there) > 30
    assert there == {row for row in shown if row[0] != "torch_xla.runtime"}


def _private_names() -> set[str]:
    """Return torch's private names in the source, by their full names."""
    found = set()
    for tree in _trees():
        roots = {"torch": "torch"}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                roots |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                roots |= {alias.asname: alias.name for alias in node.names if alias.asname}
        texts = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Attribute, ast.Name))}
        names = {roots.get(head, "") + dot + rest for head, dot, rest in (text.partition(".") for text in texts)}
        found |= {name for name in names if re.fullmatch(r"torch(\.\w+)*\._[a-z]\w*(\.\w+)*", name, re.IGNORECASE)}
    return {one for one in found if not any(name.startswith(f"{one}.") for name in found)}


@pytest.mark.versions
def test_private_names_of_torch_are_those_of_the_documentation_and_exist() -> None:
    listed = re.findall(r"`(torch\.[\w.]*\b_[\w.]+)`", _PAGE.partition("Private names of torch")[2].partition("## ")[0])
    assert len(listed) > 9
    used = _private_names()
    assert [name for name in listed if not any(f"{one}.".startswith(f"{name}.") for one in used)] == []
    assert [one for one in used if not any(f"{one}.".startswith(f"{name}.") for name in listed)] == []
    assert [name for name in listed if pkgutil.resolve_name(name) is None] == []


def test_patches_reach_imported_names_and_must_fit() -> None:
    patch = Patch("pkgutil:resolve_name", "", lambda original, context: lambda name: (original, context), "name")
    with Changes() as changes:
        apply([patch], "context", changes)
        assert resolve_name is pkgutil.resolve_name
        original, context = resolve_name("re")
        assert context == "context"
    assert resolve_name is pkgutil.resolve_name is original
    for wrong in (
        Patch("torch:no_such_name", ""),
        Patch("torch:load", "", None, "g"),
        Patch("torch:save", "", None, "a, ..."),
    ):
        with Changes() as changes, pytest.raises(UserError, match="cpudist does not know torch"):
            apply([wrong], None, changes)
