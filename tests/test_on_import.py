"""An action follows a module's import: one that is over, to come, or under way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from cpudist.on_import import after_import


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A module that asks for its own import in the middle of it; what the action then finds in it."""
    found: list[object] = []
    helper = ModuleType("asks_for_late")
    monkeypatch.setitem(sys.modules, helper.__name__, helper)

    def ask() -> None:
        cancel = after_import("late_module", lambda module: found.append(vars(module).get("last")))
        if "cancel" in sys.argv:
            cancel()

    vars(helper)["ask"] = ask
    (tmp_path / "late_module.py").write_text("import asks_for_late\nasks_for_late.ask()\n1 / divisor\nlast = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    return found


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


def test_at_the_end_of_an_import_under_way(late: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.divisor", 1, raising=False)
    module = __import__("late_module")
    assert late == [1]
    assert type(module.__spec__).__name__ == "ModuleSpec"


def test_not_after_an_import_that_fails(late: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.divisor", 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        __import__("late_module")
    assert late == []


def test_not_when_cancelled(late: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.divisor", 1, raising=False)
    monkeypatch.setattr(sys, "argv", ["cancel"])
    __import__("late_module")
    assert late == []
