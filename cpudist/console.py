"""The one voice in which cpudist speaks to the user: lines on standard error that begin with `cpudist: `."""

from __future__ import annotations

import contextlib
import sys


def say(line: str, program: str = "cpudist") -> None:
    """Write one line in one piece, so that the lines of several ranks do not mix.

    Where standard error is closed or full, nobody reads it, and that is no reason for anything else to fail.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{program}: {line}\n")
        sys.stderr.flush()


def one_line(text: str) -> str:
    """`text` without line breaks."""
    return " ".join(text.split())


def first_line(error: BaseException) -> str:
    """The first line of an error's text; of an error without one the name of its type."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
