"""The command `cpudist`: its help, its version, and wrong words."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import completed

from cpudist.cli import docs, train
from cpudist.cli.main import COMMANDS, main
from cpudist.cli.parser import with_dashes


@pytest.mark.parametrize("run", [main, train.main])
@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_teaches(run: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert run(words) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mpirun", "cpudist-train", "examples:"))


def test_ctrl_c_is_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(docs, "run", interrupted)
    assert main(["docs"]) == 130
    assert capsys.readouterr().err == ""


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


def test_docs_lists_the_pages_shows_one_and_finds_words(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> str:
        assert main(["docs", *words]) == 0
        return capsys.readouterr().out

    assert f"{'slow-networks':<18}Slow networks\n" in shown()
    (page,) = {shown(name) for name in ("slow-networks", "slow-networks.md", "docs/slow-networks.md")}
    assert max(map(len, page.splitlines())) <= 100
    assert "`" not in page  # Markdown is shown as text
    assert "placement" in shown("CPU", "quota").splitlines()


def test_pages_that_messages_and_help_name_exist() -> None:
    sources = [path.read_text() for path in docs.PAGES.parent.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"cpudist docs ([a-z-]+)", text)}
    assert {"own-script", "slow-networks"} <= named
    assert {name for name in named if not (docs.PAGES / f"{name}.md").exists()} == set()


@pytest.mark.job
def test_no_help_imports_torch() -> None:
    ask = "import contextlib, sys; from cpudist.cli.main import COMMANDS, main\nfor name in COMMANDS:\n"
    ask += "  with contextlib.suppress(SystemExit): main([name, '--help'])\n  assert 'torch' not in sys.modules, name"
    assert completed([sys.executable, "-c", ask], timeout=60).stdout.count("usage: ") >= len(COMMANDS)


def test_options_of_train_before_target_and_the_rest_untouched() -> None:
    words = "--backend gloo --timeout=7 run.py --backend x -m -- -h --timeout 9"
    options = train._parse(train._parser(), words.split())
    job_options = train._job_options(options)
    assert (job_options.backend, job_options.timeout, job_options.from_flags) == ("gloo", 7.0, True)
    assert (options.module, options.target, options.help) == (False, "run.py", False)
    assert options.args == ["--backend", "x", "-m", "--", "-h", "--timeout", "9"]
    options = train._parse(train._parser(), ["--record", "r.json", "-m", "package.module", "-m", "y"])
    assert train._job_options(options).record == Path("r.json")
    assert (options.module, options.target, options.args) == (True, "package.module", ["-m", "y"])
