"""Command lines: TARGET runs as under plain python, long arguments reach the ranks, lines and options in messages."""

import os
import sys
from pathlib import Path

import pytest
from jobs import completed, torchrun

from cpudist import console
from cpudist.errors import UserError
from cpudist.launchers import notebook
from cpudist.script import long_arguments
from cpudist.script.target import resolve

# Runs a target in a process of its own, since a target takes over sys.argv, sys.path and __main__.
_RUN = "from cpudist.script.target import resolve; resolve({name!r}, {args!r}, module={module})()"

_SCRIPT = """
import dataclasses, multiprocessing, os, pickle, sys
import neighbour

@dataclasses.dataclass
class Point:
    x: int

def double(x):
    return 2 * x

if __name__ == "__main__":
    here = (sys.path[0], sys._getframe().f_code.co_filename, sys.argv, neighbour.__file__)
    os.chdir("/")  # what the rest does must not depend on the working folder
    assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(double, [4]) == [8]
    main = {name: value for name, value in globals().items() if name[:2] == "__" and name != "__annotations__"}
    main |= {"__spec__": getattr(__spec__, "name", None), "__loader__": type(__loader__)}
    print(here, main, sys.modules["__main__"].__dict__ is globals())
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
    (inner / "package" / "__init__.py").write_text("import sys; print('imported', file=sys.stderr)")
    (inner / "package" / "part.py").write_text(_SCRIPT.replace("import neighbour", "from .. import neighbour"))
    (tmp_path / "link.py").symlink_to("inner/script.py")
    return tmp_path


@pytest.mark.job
def test_a_target_gets_what_python_and_torchrun_give_it(folder: Path) -> None:
    """Its path in each form, as a link, without the suffix, a module; and torchrun's ranks get what python gives."""
    (folder / "program").write_text(_SCRIPT)
    (folder / "neighbour.py").write_text("")
    (folder / "sub").mkdir()
    scripts = ["inner/script.py", "./inner/script.py", "sub/../link.py", str(folder / "link.py"), "program"]
    for words in (*([name] for name in scripts), ["-m", "inner.script"], ["-m", "inner.package.part"]):
        given = completed([sys.executable, *words, "--a", "1"], timeout=60, cwd=folder).stdout
        assert _run(folder, words[-1], ["--a", "1"], module=words[0] == "-m") == given.strip()
        assert str(folder) in given
    assert completed(torchrun(1, *words, "--a", "1"), timeout=60, cwd=folder).stdout == given


@pytest.mark.job
def test_a_command_on_path_is_its_packages_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip installs it; a program that is not Python's is an error."""
    installed = folder / "site-packages"
    for name, text in {
        "../fine-tune": f"#!{sys.executable}\nfrom tuner.cli import main\nmain()\n",
        "tuner/cli.py": "import sys\nfrom cpudist.script.frames import is_user_code\n"
        "def main(): print(sys.argv, is_user_code(sys._getframe()))\n",
        "tuner-1.dist-info/METADATA": "Name: tuner\nVersion: 1\n",
        "tuner-1.dist-info/entry_points.txt": "[console_scripts]\nfine-tune = tuner.cli:main\n",
    }.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(text)
    (folder / "fine-tune").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    assert _run(folder / "inner", "fine-tune", ["-x"]) == f"['{folder}/fine-tune', '-x'] True"
    with pytest.raises(UserError, match="/ls is no Python program"):
        resolve("ls", [])


def test_it_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder / "inner")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    resolve("package.part", [], module=True)
    for name in ("package", "package.missing", "package.part.deeper", "missing.part", "json."):
        with pytest.raises(UserError, match="there is no module"):
            resolve(name, [], module=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "part"), [("train", "or -m and a module"), ("a/b", "no script"), (".", "a folder")])
def test_unknown_targets_say_what_could_have_been(name: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        resolve(name, [])


def test_too_long_arguments_are_an_error() -> None:
    with pytest.raises(UserError, match="100000 arguments are too long"):
        long_arguments.variables([os.urandom(2).hex() for _ in range(100_000)])


def test_the_curve_of_a_training_that_diverges() -> None:
    assert console.curve([3.0, 2.0, float("nan"), 4.0, float("inf")]) == "▅▁█"
    assert console.curve([float("nan")]) == console.curve([]) == ""


def test_an_option_is_written_as_its_user_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert console.option("async_checkpoint") == "--async-checkpoint"
    monkeypatch.setenv(notebook.JOB, "job/0")
    assert console.option("backend", "gloo") == 'notebook_launcher(…, backend="gloo")'
    assert console.option("timeout") == "notebook_launcher(…, timeout=…)"


def test_a_line_does_not_share_that_of_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    with tqdm(total=2, file=sys.stderr, ncols=30):
        console.say("first")
    console.say("second")
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert {"cpudist: first", "cpudist: second"} <= {*lines}
