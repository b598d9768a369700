"""Changes that are undone with a job, and actions that follow a module's import: one over, to come, or under way."""

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from cpudist.patching.on_import import after_import
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
