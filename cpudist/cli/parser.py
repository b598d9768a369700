"""What the parsers of all commands have in common: who speaks, and how options may be spelled."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from cpudist.errors import UserError
from cpudist.launchers import launched_rank


class Parser(argparse.ArgumentParser):
    """Of all ranks that a launcher started, rank 0 alone speaks: errors are `UserError`s, help is its own."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help explains what it takes")

    def _print_message(self, message: str, file: Any = None) -> None:
        if launched_rank() in (0, None):
            super()._print_message(message, file)


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
