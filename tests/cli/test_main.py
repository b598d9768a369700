"""The command `cpudist`: its help, its version, and wrong words."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpudist.cli import docs
from cpudist.cli.main import COMMANDS, main
from cpudist.cli.parser import with_dashes
from cpudist.version import __version__


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_shows_the_commands_and_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for expected in ("build", "bench", "mpirun -n 2 cpudist bench collectives", "cpudist-train"):
        assert expected in shown


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(docs, "run", interrupted)
    assert main(["docs"]) == 130
    assert capsys.readouterr().err == ""


def test_python_m_cpudist_is_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cpudist", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("cpudist", run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out == f"cpudist {__version__}\n"


@pytest.mark.parametrize(("age", "said"), [(-3600, "compiled: "), (3600, "compiled before: ")])
def test_build_says_where_and_how_to_use_it(
    age: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, kernel = tmp_path / "cpudist_ccl.so", tmp_path / "cpudist_dropout.so"
    for path, changed in ((binary, time.time() - age), (kernel, 0)):
        path.touch()
        os.utime(path, (changed, changed))
    monkeypatch.setattr("cpudist.backends.ccl.compilation.ensure_built", lambda cache: binary)
    monkeypatch.setattr("cpudist.optimization.dropout.ensure_built", lambda cache: kernel)
    assert main(["build", "--output", str(tmp_path)]) == 0
    lines = [f"compiled before: {kernel}", f"{said}{binary}", f"set CPUDIST_CACHE={tmp_path} where jobs run"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize("target", [["--", "-m", "train", "--num_epochs"], ["train.py", "--num_epochs"]])
def test_options_before_the_target_may_be_spelled_with_underscores(target: list[str]) -> None:
    options = ["launch", "--max_restarts=2", "--ppn", "a_b"]
    assert with_dashes([*options, *target]) == ["launch", "--max-restarts=2", "--ppn", "a_b", *target]


@pytest.mark.job
def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"{sys.executable} -m cpudist plan --ppn 500 | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("machine: ")
    assert done.stderr == ""


def test_docs_lists_the_pages_and_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    assert f"{'slow-networks':<18}Slow networks\n" in capsys.readouterr().out
    pages = set()
    for name in ("slow-networks", "slow-networks.md", "docs/slow-networks.md"):
        assert main(["docs", name]) == 0
        pages.add(capsys.readouterr().out)
    (page,) = pages
    assert max(map(len, page.splitlines())) <= 100
    assert "`" not in page  # Markdown is shown as text


def test_docs_finds_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "CPU", "quota"]) == 0
    pages = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert "placement" in pages


def test_pages_that_messages_and_help_name_exist() -> None:
    sources = [path.read_text() for path in docs.PAGES.parent.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"cpudist docs ([a-z-]+)", text)}
    assert {"own-script", "slow-networks"} <= named
    assert {name for name in named if not (docs.PAGES / f"{name}.md").exists()} == set()


@pytest.mark.job
def test_no_help_imports_torch() -> None:
    ask = "import sys; from cpudist.cli.main import main\n"
    ask += "try: main([sys.argv[1], '--help'])\nfinally: print('torch' in sys.modules)"
    for name in COMMANDS:
        command = [sys.executable, "-c", ask, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.endswith("False\n"), name
