"""Format amounts, and print lines that begin with `cpudist: ` on standard error."""

import _thread
import contextlib
import io
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

_UNITS = ("B", "KB", "MB", "GB", "TB")
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLORS = {"error": 31, "warning": 33, "ok": 32}  # red, yellow, green
_CURVE_CELLS = 24
_LARGEST_LOSS = 1e300  # the sum of larger losses may be infinite
_NAMES = 3  # Most names in one sentence.
_FLUSH_SECONDS = 2.0  # Longest wait: a full pipe or disk may block forever.


def say(line: str, program: str = "cpudist") -> None:
    """Write `program` and one line in a single call, so that the lines of several ranks do not mix.

    If standard error is closed or full, the line is lost. If tqdm shows a progress bar, the line is written below it.
    If writing blocks, as on a paused terminal, the main thread waits, but other threads wait two seconds at most.
    """

    def write() -> None:
        bars = getattr(getattr(sys.modules.get("tqdm.std"), "tqdm", None), "_instances", ())
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(("\n" if bars else "") + f"{program}: {line}\n")
            sys.stderr.flush()

    if threading.get_ident() == threading.main_thread().ident:
        write()
    else:
        in_time(write)


def show_lines_at_once() -> None:
    """Flush standard output after each line: Python buffers 8 KB if it is a pipe or a file.

    A standard output that is closed, or that the script or a notebook has replaced, stays as it is.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.reconfigure(line_buffering=True)


def size(count: float) -> str:
    """Return a number of bytes, such as ``64 KB`` or ``1.5 GB``. The units are powers of 1024."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if count >= 100 else f"{count:.3g} {_UNITS[unit]}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of cells as text in columns; all lines have the same number of cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ([f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)] for line in lines)
    return ["  ".join(cells).rstrip() for cells in padded]


def colored(text: str, level: str) -> str:
    """Return a text in the colour of a finding's level; unchanged if standard output shows no colours."""
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{_COLORS[level]}m{text}\033[0m"


def curve(losses: Sequence[float]) -> str:
    """Return the losses as a curve of at most 24 block characters, each for the mean of some successive losses."""
    losses = [loss for loss in losses if abs(loss) < _LARGEST_LOSS]  # a training that diverges logs NaN
    cells = min(len(losses), _CURVE_CELLS)
    bounds = [number * len(losses) // cells for number in range(cells + 1)] if cells else []
    means = [sum(losses[begin:end]) / (end - begin) for begin, end in itertools.pairwise(bounds)]
    low, high = (min(means), max(means)) if means else (0, 0)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(top * (mean - low) / (high - low))] if high > low else _BLOCKS[0] for mean in means)


def number_of(count: int, what: str) -> str:
    """Return a number with its noun, such as ``1 core`` or ``2 cores``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def names_of(things: Iterable[str], noun: str = "host") -> str:
    """Return the distinct names, such as ``h0, h1``; of more than three, the first three and the number of others."""
    names = list(dict.fromkeys(things))
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {number_of(more, f'more {noun}')}" if more > 0 else "")


def duration(seconds: float) -> str:
    """Return a time, such as ``4.1 s``, or ``0:01:30`` from one minute on."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def option(name: str, value: str = "") -> str:
    """Return an option as the user writes it: ``--backend gloo``, in notebooks ``notebook_launcher(…, backend=…)``."""
    if "CPUDIST_NOTEBOOK" in os.environ:  # set in the ranks of a notebook (launchers/notebook.py)
        return f"notebook_launcher(…, {name}={json.dumps(value) if value else '…'})"
    return f"--{name.replace('_', '-')} {value}".rstrip()


def one_line(text: str) -> str:
    return " ".join(text.split())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or the name of its type if the text is empty."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def is_interactive() -> bool:
    """Return whether this is a notebook or an interactive session, which an exception does not end."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return True
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


def in_time(function: Callable[[], object], seconds: float = _FLUSH_SECONDS) -> None:
    """Call `function` in another thread, and wait for its end, but not longer than `seconds`."""
    ended = _thread.allocate_lock()
    ended.acquire()

    def call() -> None:
        try:
            function()
        finally:
            ended.release()

    with contextlib.suppress(RuntimeError):  # no thread can be started
        _thread.start_new_thread(call, ())  # threading.Thread takes locks that a stuck thread may hold
        ended.acquire(timeout=seconds)
