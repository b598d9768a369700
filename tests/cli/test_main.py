"""The commands `cpudist` and `cpudist-train`: help, options, commands that pages show, and wrong words."""

import contextlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import completed
from launcher_variables import TORCHRUN

from cpudist.cli import docs, train
from cpudist.cli.main import _EPILOG, COMMANDS, _parser, main
from cpudist.cli.parser import parse
from cpudist.errors import UserError


@pytest.mark.parametrize("run", [main, train.main])
@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_teaches(run: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert run(words) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mpirun", "cpudist-train", "examples:"))


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
    assert re.search("^placement  .*CPU quota", shown("quota", "cpu"), re.MULTILINE)
    assert "reference         | `LOCAL_RANK`" in shown("LOCAL_RANK")


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


@pytest.mark.parametrize("target", ["-- -m train --num_epochs", "train.py --num_epochs -- --x_y", "tool --num_epochs"])
def test_options_before_the_target_may_be_spelled_with_underscores(target: str) -> None:
    options = parse(_parser(), ["launch", "--max_restarts=2", "--mpi", "intel", *target.split()])
    assert (options.max_restarts, options.mpi, options.arguments) == (2, "intel", target.split())
    options = parse(train._parser(), ["--log_dir", "a_b", "x_y.py", "--x_y"])
    assert (options.log_dir, options.target, options.arguments) == (Path("a_b"), "x_y.py", ["--x_y"])


def test_options_of_train_before_target_and_the_rest_untouched() -> None:
    words = "--backend gloo --timeout=7 run.py --backend x -m -- -h --timeout 9"
    options = train._parse(train._parser(), words.split())
    job_options = train._job_options(options)
    assert (job_options.backend, job_options.timeout, job_options.from_flags) == ("gloo", 7.0, True)
    assert (options.module, options.target, options.help) == (False, "run.py", False)
    assert options.arguments == ["--backend", "x", "-m", "--", "-h", "--timeout", "9"]
    options = train._parse(train._parser(), ["--record", "r.json", "-m", "package.module", "-m", "y"])
    assert train._job_options(options).record == Path("r.json")
    assert (options.module, options.target, options.arguments) == (True, "package.module", ["-m", "y"])


# The commands that pages and `--help` show: the real parsers take each of them.
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")]
EPILOGS = [train._EPILOG, _EPILOG, *(getattr(command, "EPILOG", "") for command in COMMANDS.values())]
COMMAND = re.compile(r"\b(cpudist-train(?= +[^ :])|cpudist (?=(?:" + "|".join(COMMANDS) + r")\b)).*")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Values in the place of a page's words for them.
VALUES = {"FOLDER": "out", "N": "1", "SECONDS": "1", "B": "ccl", "T": "60"}
VALUES |= dict.fromkeys(("FILE", "$PBS_NODEFILE", "~/hosts"), "hosts")


def _lines() -> Iterator[str]:
    """Yield the lines of blocks without a language, and the texts of inline code."""
    for page in PAGES:
        for language, lines in BLOCK.findall(page.read_text()):
            yield from () if language else lines.replace("\\\n", " ").splitlines()
        yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text()))
    for epilog in EPILOGS:
        yield from (line for line in epilog.replace("\\\n", " ").splitlines() if line.startswith("    "))


def _commands() -> set[tuple[str, ...]]:
    found = set()
    for line in _lines():
        shown = COMMAND.search(re.sub(r"\s{2,}cpudist\.|\s#\s.*| > .*|[\[\]]", "", line))
        if shown and not line.startswith("cpudist:"):
            words = [VALUES.get(word, word) for word in shlex.split(shown[0].replace("`", " "))]
            found.add(tuple(word for word in words if word != "…"))
    return found


DOCUMENTED = _commands()


def _parse(words: list[str]) -> None:
    """Parse the words as the command does that they begin with."""
    if words[0] == "cpudist":
        without_target = words[1] == "launch" and "--" not in words
        options = _parser().parse_args(words[1:] + (["--", "train.py"] if without_target else []))
        target = getattr(options, "arguments", None)
        if target:
            _parse(["cpudist-train", *target[target[:1] == ["--"] :]])
        return
    train._parser().parse_args(words[1:])


def test_all_kinds_of_commands_are_found() -> None:
    assert len(DOCUMENTED) > 60
    assert {words[1] for words in DOCUMENTED if words[0] == "cpudist"} == set(COMMANDS)


@pytest.mark.parametrize("words", sorted(DOCUMENTED), ids=" ".join)
def test_the_parser_takes_it(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hosts", "hostfile"):
        Path(name).write_text("node0:2\nnode1:2\n")
    assert _refusal(list(words)) is None


def _refusal(words: list[str]) -> UserError | None:
    """Return the parser's error, but not for prose that names `cpudist bench`, or an option without its value."""
    try:
        _parse(words)
    except SystemExit as end:  # --help
        return UserError(str(end)) if end.code else None
    except UserError as error:
        named_alone = len(words) == 2 or words[-1].startswith("--")
        incomplete = re.search("required: |invalid choice: .--|expected one argument", str(error))
        return None if named_alone and incomplete else error
    return None


# A command line, and what its error names.
WRONG = """\
cpudist fly | no command fly
cpudist stack | did you mean stacks?
cpudist train.py --epochs 3 | cpudist run train.py --epochs 3
cpudist --fast | COMMAND
cpudist build --json x | --json
cpudist build --output cut.json | cut.json is not a folder
cpudist bench | {collectives,hosts}
cpudist bench collectives --only int8 | cpudist bench hosts --only
cpudist bench hosts --only fp4 | --only fp4
cpudist plan --measure --topology cut.json | --measure needs the machine itself
cpudist plan -- train.py | train.py is for --measure
cpudist plan --ppn 0 | '0'; see
cpudist plan --topology nowhere.xml | nowhere.xml does not exist
cpudist plan --topology /dev/zero | /dev/zero describes no machine
cpudist plan --topology cut.json | lscpu -p
cpudist launch | no TARGET
cpudist launch --min-nodes 2 -- t.py | --max-restarts
cpudist launch --timeout=20 -- t.py | --timeout
cpudist run -m | no TARGET
cpudist run --nnodes 2 t.py | cpudist launch --hostfile hosts
cpudist run --rdzv-endpoint=node0:29400 t.py | cpudist launch --hostfile hosts
cpudist launch --hostfile /no/such/file -- t.py | /no/such/file
cpudist launch --hostfile hosts --nproc 5 -- t.py | 5 ranks do not fit on 2 hosts with room for 4
cpudist test --hostfile hosts --json /proc/cluster.json | /proc/cluster.json
cpudist top --json | --once
cpudist top --hostfile none | none
cpudist docs fast-networks | fast-networks
cpudist summary nowhere | No such file
cpudist summary cut.json | cut.json
cpudist summary list.json | list.json
cpudist forecast old.json | cpudist test
cpudist forecast old.json --network 10parsec | '10parsec'
cpudist forecast empty --network 1gbit | empty/cpudist.json
cpudist forecast old.json --network 1gbit | old.json
cpudist forecast none.py --network 1gbit | none.py
cpudist forecast old.json more --network 1gbit | more
cpudist forecast --network 1gbit -- -m | -m
cpudist-train nonsense | -m and a module
cpudist-train --bakend gloo run.py | --bakend
cpudist-train --timeout -3 run.py | --timeout
cpudist-train --stall 0 cut.json | --stall
cpudist-train --backend gloo | no TARGET
cpudist-train --timeline t.json --steps=5:5 run.py | 10:15
cpudist-train --metrics-port h0: run.py | 'h0:'
cpudist-train --metrics-port 65536 run.py | '65536'
"""

FILES = {
    "list.json": "[]",
    "cut.json": '{"world_size":',
    "old.json": json.dumps({"world_size": 2, "hosts": ["a"], "step_seconds": {"median": 1.0}}),
    "hosts": "h0:2\nh1:2\n",  # without addresses
}


@pytest.mark.job  # a check of hosts starts ssh
@pytest.mark.parametrize("line", WRONG.splitlines())
def test_one_line_names_them(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Wrong words and files that are no records: status 2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    for name, text in FILES.items():
        Path(name).write_text(text)
    command, _, named = line.partition(" | ")
    program, *words = shlex.split(command)
    assert {"cpudist": main, "cpudist-train": train.main}[program](words) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n"), err[:7]) == ("", 1, "cpudist")
    assert named in err


@pytest.mark.parametrize("run", [main, train.main])
def test_under_a_launcher_rank_0_alone_names_them(
    run: Callable[[list[str]], int], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert run(["nonsense"]) == 2
    with contextlib.suppress(SystemExit):
        run(["--help"])
    assert capfd.readouterr() == ("", "")
