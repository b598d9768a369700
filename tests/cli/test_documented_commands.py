"""Commands that pages and `--help` show: the real parsers take each of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpudist.cli import main, train
from cpudist.errors import UserError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")]
EPILOGS = [train._EPILOG, main._EPILOG, *(command.EPILOG or "" for command in main.COMMANDS.values())]
COMMAND = re.compile(r"\b(cpudist-train(?= +[^ :])|cpudist (?=(?:" + "|".join(main.COMMANDS) + r")\b)).*")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Values in the place of a page's words for them.
VALUES = {"FILE": "hosts", "FOLDER": "out", "N": "1", "SECONDS": "1", "B": "ccl", "T": "60"}


def _lines_of_blocks(page: Path) -> Iterator[str]:
    for language, lines in BLOCK.findall(page.read_text()):
        if not language:
            yield from lines.replace("\\\n", " ").splitlines()


def _lines() -> Iterator[str]:
    """Yield the lines of blocks without a language, and the texts of inline code."""
    for page in PAGES:
        yield from _lines_of_blocks(page)
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


COMMANDS = _commands()


def _parse(words: list[str]) -> None:
    """Parse the words as the command does that they begin with.

    Raises:
        UserError: it does not take them.
    """
    if words[0] == "cpudist":
        without_target = words[1] == "launch" and "--" not in words
        options = main._parser().parse_args(words[1:] + (["--", "train.py"] if without_target else []))
        target = getattr(options, "arguments", None)
        if target:
            _parse(["cpudist-train", *target[target[:1] == ["--"] :]])
        return
    train._parser().parse_args(words[1:])


@pytest.fixture(autouse=True)
def _hostfiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hosts", "hostfile"):
        Path(name).write_text("node0:2\nnode1:2\n")


def test_all_kinds_of_commands_are_found() -> None:
    assert len(COMMANDS) > 60
    assert {words[1] for words in COMMANDS if words[0] == "cpudist"} == set(main.COMMANDS)


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_the_parser_takes_it(words: tuple[str, ...]) -> None:
    assert _refusal(list(words)) is None


def test_a_wrong_option_is_found() -> None:
    assert "--no-such" in str(_refusal(["cpudist", "launch", "--nproc", "2", "--", "--no-such", "train.py"]))


def _refusal(words: list[str]) -> UserError | None:
    """Return the parser's error, but not for prose that names `cpudist bench`, or an option without its value."""
    try:
        _parse(words)
    except SystemExit as end:  # --help
        return UserError(str(end)) if end.code else None
    except UserError as error:
        named_alone = len(words) == 2 or words[-1].startswith("--")
        return (
            None
            if named_alone and re.search("required: {|invalid choice: .--|expected one argument", str(error))
            else error
        )
    return None


# Which tests run a command of this form; the pages on Kubernetes, Slurm and notebooks have such tests of their own.
RUN_BY = {
    r"(\$ )?cpudist plan": "topology/test_plan_command.py",
    r"cpudist doctor --hostfile": "hosts/test_launch.py",
    r"cpudist test --hostfile": "hosts/test_cluster.py",
    r"cpudist summary": "cli/test_summary.py",
    r"cpudist forecast": "cli/test_forecast_command.py",
    r"cpudist doctor": "doctor/test_doctor.py",
    r"cpudist build|pip install|pip wheel|python3 -m venv|apt-get": "../scripts/environment.sh",  # before the tests
    r"cpudist launch .*--max-restarts": "hosts/test_launch.py",
    r"cpudist launch .*train_digits": "examples/test_own_loops.py",
    r"cpudist launch --host": "hosts/test_launch.py",
    r"(mpirun -n 2 )?cpudist-train --backend xla": "backends/xla/test_xla.py",
    r"mpirun -n 2 cpudist-train train.py": "job/test_job.py",
    r"(\$ )?mpirun -n 2 cpudist-train --timeline": "observability/test_timeline.py",
    r"mpirun -n 2 cpudist-train examples/language_model.py": "examples/test_language_model.py",
    r"mpirun -n 2 cpudist-train examples/question_answering.py": "examples/test_question_answering.py",
    r"mpirun -n 2 cpudist-train examples/images.py": "examples/test_images.py",
    r"mpirun -n 2 cpudist-train examples/one_program.py": "examples/test_own_loops.py",
    r"mpirun -f \S+ .*--compress bf16": "backends/ccl/test_ccl.py",
    r"mpirun -f \S+ .*examples/local_sgd.py": "examples/test_own_loops.py",
    r"mpirun -f \S+ .*python3 run_qa.py": "huggingface/test_documented.py",
    r"mpirun -f \S+ .*python3 -m trl": "examples/test_trl.py",
    r"mpirun -f \S+ .*cpudist-train": "hosts/test_jobs.py",
    r"srun .*cpudist-train": "launchers/test_srun.py",
    r"torchrun .*cpudist-train": "huggingface/test_checkpoints.py",
    r"ssh-keygen|for host in|printf": "helpers/bed/keys.py",  # by its own commands: the bed needs no password
}
WITH_OWN_TESTS = ("kubernetes.md", "slurm.md", "notebooks.md")


def test_each_command_of_a_block_is_run_by_a_test() -> None:
    assert [file for file in RUN_BY.values() if not (ROOT / "tests" / file).exists()] == []
    used = set()
    for page in PAGES:
        for line in _lines_of_blocks(page) if page.name not in WITH_OWN_TESTS else ():
            if (
                re.match(r"(\$ )?(mpirun|cpudist[ -]|pip|python|srun|torchrun|for|apt|ssh|printf)", line)
                and "(B, T)" not in line
            ):
                patterns = [pattern for pattern in RUN_BY if re.match(pattern, line)]
                assert patterns, f"{page.name}: no test is named for: {line}"
                used.add(patterns[0])
    assert used == set(RUN_BY)
