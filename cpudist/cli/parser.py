"""What the parsers of all commands have in common: what a mistake becomes, and how options may be spelled."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterator, Sequence
from typing import NoReturn

from cpudist.environments import Environment
from cpudist.errors import UserError


class Parser(argparse.ArgumentParser):
    """Raises a `UserError` for a mistake, so that one line is all that is shown."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help explains what it takes")


def number_of_processes(text: str) -> int:
    """The value of an option that counts processes, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes")
    return int(text)


@contextlib.contextmanager
def shown_once(environment: Environment) -> Iterator[None]:
    """Of all ranks that a launcher started, one shows what the block prints, such as help."""
    with contextlib.nullcontext() if environment.speaks else contextlib.redirect_stdout(io.StringIO()):
        yield


def with_dashes(words: Sequence[str]) -> list[str]:
    """Options as `--like-this`, also where the user wrote `--like_this`; what follows `--` stays as it is."""
    words = list(words)
    ours = words.index("--") if "--" in words else len(words)
    return [_with_dashes(word) for word in words[:ours]] + words[ours:]


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
