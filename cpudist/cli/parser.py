"""The parser of all commands: reports a mistake in one line, accepts - and _ in options, and converts values."""

import argparse
import contextlib
import io
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn, cast, get_args

from cpudist.errors import UserError
from cpudist.launchers import Launcher
from cpudist.pinning.plan import Part

NO_TARGET = "no TARGET; give a script, or -m and a module, after `--`, as for cpudist-train"

_MOST_RANKS = 10_000  # per node; a plan for more would take minutes


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises a `UserError` for a mistake, so that only one line is shown."""

    unknown_option_hint = ""  # remedy in the error for an option that this command does not have

    def __init__(self, **settings: Any) -> None:
        settings = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **settings}
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError` with argparse's message and a hint to --help."""
        raise UserError(f"{message}; see {self.prog} --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does; if `unknown_option_hint` is set, an unknown option raises a `UserError` with it."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and self.unknown_option_hint:
            option = unknown[0].partition("=")[0]
            raise UserError(f"{self.prog.split(' [')[0]} has no option {option}; {self.unknown_option_hint}")
        return parsed, unknown


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add `arguments`: the words after `--`, for cpudist-train."""
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- TARGET [ARGS...]", help="for cpudist-train")


def add_ranks_per_node(parser: argparse.ArgumentParser, dest: str, default: str) -> None:
    """Add `--ppn`; its help gives `default` as its default value, and numa where that does not exist."""
    text = f"ranks on a host: a number, or one per socket, NUMA node or L3 cache (default: {default}, otherwise numa)"
    kinds = "{N,socket,numa,l3}"
    parser.add_argument("--ppn", "--nproc-per-node", dest=dest, type=_ranks_per_node, metavar=kinds, help=text)


def own_values(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of a command's own options, and its `arguments` without the `--`."""
    values = {name: value for name, value in vars(options).items() if name not in ("run", "every_rank")}
    if values["arguments"][:1] == ["--"]:
        del values["arguments"][0]
    return values


def count_from_zero(text: str, least: int = 0) -> int:
    """Return a whole number from `least` on; argparse calls this for the value of an option."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"give a whole number from {least} on, not {text!r}")
    return int(text)


count = partial(count_from_zero, least=1)


def steps(text: str) -> tuple[int, int]:
    """Return the first step and the end of a range such as "10:15"."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and 1 <= int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"give two numbers of steps such as 10:15, from 1 on, not {text!r}")
    return int(first), int(end)


def endpoint(text: str) -> tuple[str, int]:
    """Return address and port of "0.0.0.0:9400"; without an address, only this host may connect."""
    address, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"give a port such as 9400, or 0.0.0.0:9400 for all hosts, not {text!r}")
    return address.strip("[]") or "127.0.0.1", int(port)


def _ranks_per_node(text: str) -> int | Part:
    """Return the value of `--ppn`: a number of ranks, or the part of a node that gets one rank each."""
    if text in get_args(Part):
        return cast(Part, text)
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(f"give 1 to {_MOST_RANKS} ranks, socket, numa or l3, not {text!r}")
    return int(text)


def shown_once(launcher: Launcher) -> contextlib.AbstractContextManager[object]:
    """Show the output of the block, such as help, on one rank only."""
    return contextlib.nullcontext() if launcher.is_main_process else contextlib.redirect_stdout(io.StringIO())


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line whose own options may be spelled `--like_this`; the words of a target stay as they are."""
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args([*map(_with_dashes, words[:end]), *words[end:]])
    arguments = getattr(options, "arguments", [])
    options.arguments = list(words[len(words) - len(arguments) :])
    return options


def _with_dashes(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
