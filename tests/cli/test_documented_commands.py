"""Commands that pages and `--help` show: the real parsers take each of them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpudist.cli import main, train
from cpudist.errors import UserError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *(ROOT / "docs").glob("*.md")]
EPILOGS = [train._EPILOG, main._EPILOG, *(getattr(command, "EPILOG", "") for command in main.COMMANDS.values())]
COMMAND = re.compile(r"\b(cpudist-train(?= +[^ :])|cpudist (?=(?:" + "|".join(main.COMMANDS) + r")\b)).*")
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
# Values in the place of a page's words for them.
VALUES = {
    "FILE": "hosts",
    "$PBS_NODEFILE": "hosts",
    "~/hosts": "hosts",
    "FOLDER": "out",
    "N": "1",
    "SECONDS": "1",
    "B": "ccl",
    "T": "60",
}


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
