"""TARGET runs as it would under plain python."""

import sys
from pathlib import Path

import pytest
from jobs import completed

from cpudist.errors import UserError
from cpudist.target import resolve

# Runs a target in a process of its own, since a target takes over sys.argv, sys.path and __main__.
_RUN = "from cpudist.target import resolve; resolve({name!r}, {args!r}, module={module})()"

_SCRIPT = """
import dataclasses, multiprocessing, pickle, sys
import neighbour

@dataclasses.dataclass
class Point:
    x: int

def double(x):
    return 2 * x

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(double, [4]) == [8]
    print(sys.argv, neighbour.NAME, sys.modules["__main__"].__dict__ is globals())
"""


def _run(folder: Path, name: str, args: list[str], *, module: bool = False) -> str:
    code = _RUN.format(name=name, args=args, module=module)
    return completed([sys.executable, "-c", code], timeout=60, cwd=folder).stdout.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "script.py").write_text(_SCRIPT)
    (inner / "neighbour.py").write_text("NAME = 'neighbour'")
    (inner / "package").mkdir()
    (inner / "package" / "__init__.py").write_text("print('imported')")
    (inner / "package" / "part.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    return tmp_path


@pytest.mark.job
def test_a_script_sees_its_arguments_its_neighbours_and_itself_and_a_module_its_package(folder: Path) -> None:
    assert _run(folder, "inner/script.py", ["--a", "1"]) == "['inner/script.py', '--a', '1'] neighbour True"
    assert _run(folder / "inner", "package.part", ["x"], module=True) == "imported\n__main__ package ['x']"


def test_it_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder / "inner")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    resolve("package.part", [], module=True)
    for name in ("package", "package.missing", "package.part.deeper", "missing.part", "json."):
        with pytest.raises(UserError, match="there is no module"):
            resolve(name, [], module=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train", "no script train in .*; give the path of a script, or -m and a module"),
        ("missing.py", "no script"),
        ("a/b", "no script"),
        (".", "a folder"),
    ],
)
def test_unknown_targets_say_what_could_have_been(name: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        resolve(name, [])
