"""The words of a program's command line; --help prints its docstring."""

import sys


def asked(text: str | None) -> list[str]:
    """Return the words of the command line; if --help is one of them, print `text` instead and end the program."""
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print((text or "").strip())
        raise SystemExit
    return sys.argv[1:]
