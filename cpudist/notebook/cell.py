"""The notebook's IPython shell, the names of its cells, and the live view of the ranks in a cell."""

import sys
import time
import uuid
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from html import escape
from typing import Any

from cpudist.observability.rank_answers import RankStacks, ask_ranks
from cpudist.observability.rank_table import SAMPLES, loss_lines, losses_of, rows_of, table

_SECONDS = 2.0  # sampling interval
_COLUMNS = ("rank", "host", "steps", "steps_per_second", "waits", "delays", "memory", "doing")
_ROOM = 16  # most ranks in the table
_STYLE = "margin:0; padding:0 8px; font-size:13px; white-space:pre; overflow-x:auto"


def shell() -> Any:
    """Return IPython's shell, whose cells show figures; None in plain Python."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def name_of(file: str) -> str:
    """Return the name, such as "cell 5", of the cell that IPython has compiled as `file`; `file` if there is none."""
    compiler: Any = getattr(shell(), "compile", None)
    label = compiler.format_code_name(file) if hasattr(compiler, "format_code_name") else None  # since IPython 8
    return f"cell {label[1].strip('In[]')}" if label is not None else file


class LiveView:
    """Shows this node's ranks and their loss in an output area of the cell; `close` empties it.

    Nothing is shown in plain Python, or in IPython in a terminal.
    """

    def __init__(self) -> None:
        self._display = shell().display_pub if hasattr(shell(), "kernel") else None
        self._name = {"display_id": uuid.uuid4().hex}
        self._samples = deque[dict[int, RankStacks]](maxlen=SAMPLES)
        self._pool = ThreadPoolExecutor(1)  # in a thread, because a busy rank may answer late
        self._answers: Future[list[RankStacks]] | None = None
        self._asked = time.monotonic()
        self._show("the ranks start", again=False)

    def tick(self, processes: Collection[int]) -> None:
        """Show the ranks with these process ids every two seconds, without waiting for their answers."""
        if self._answers is not None and self._answers.done():
            if not self._answers.exception():
                self._add({one.address.rank: one for one in self._answers.result()})
            self._answers = None
        if self._display is not None and self._answers is None and time.monotonic() > self._asked + _SECONDS:
            self._asked = time.monotonic()
            self._answers = self._pool.submit(ask_ranks, processes)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._show("")

    def _add(self, answers: dict[int, RankStacks]) -> None:
        if answers:
            ranks = {**(self._samples[-1] if self._samples else {}), **answers}  # keeps a silent rank's last answer
            self._samples.append(ranks)
            lines = table(rows_of(ranks, self._samples[0]), _ROOM, _COLUMNS)
            self._show("\n".join([*lines, *loss_lines(losses_of(ranks))]))

    def _show(self, text: str, *, again: bool = True) -> None:
        if self._display is not None:
            html = f'<pre style="{_STYLE}">{escape(text)}</pre>' if text else ""
            self._display.publish({"text/plain": text, "text/html": html}, transient=self._name, update=again)
