"""Show the ranks of this node and their loss live in the notebook's cell."""

import math
import time
import uuid
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from html import escape
from typing import Any

from cpudist.observability.rank_answers import RankStacks, ask_ranks
from cpudist.observability.rank_table import SAMPLES, loss_lines, losses_of, rows_of, table

_SECONDS = 2.0  # sampling interval
_COLUMNS = ("rank", "host", "steps", "steps_per_second", "waits", "delays", "memory", "doing")
_ROOM = 16  # most ranks in the table
_START = "the ranks start"
_WIDTH, _HEIGHT = 560, 110  # size of the loss curve in pixels


class LiveView:
    """Shows the ranks of a job in an output area of the cell; `close` empties it.

    Nothing is shown in plain Python (no `shell`), or in IPython in a terminal.
    """

    def __init__(self, shell: Any) -> None:
        self._display = shell.display_pub if hasattr(shell, "kernel") else None
        self._name = {"display_id": uuid.uuid4().hex}
        self._looks = deque[dict[int, RankStacks]](maxlen=SAMPLES)
        self._pool = ThreadPoolExecutor(1)  # in a thread, because a busy rank may answer late
        self._answers: Future[list[RankStacks]] | None = None
        self._asked = time.monotonic()
        self._show(_START, _as_html([_START], []), again=False)

    def tick(self, processes: Sequence[int]) -> None:
        """Show the ranks with these process ids every two seconds, without waiting for their answers."""
        if self._answers is not None and self._answers.done():
            if not self._answers.exception():
                self._add({one.address.rank: one for one in self._answers.result()})
            self._answers = None
        if self._display is not None and self._answers is None and time.monotonic() > self._asked + _SECONDS:
            self._asked = time.monotonic()
            self._answers = self._pool.submit(ask_ranks, processes)

    def close(self) -> None:
        """Empty the output area."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._show("", "")

    def _add(self, answers: dict[int, RankStacks]) -> None:
        if answers:
            ranks = {**(self._looks[-1] if self._looks else {}), **answers}  # keeps the last answer of a silent rank
            self._looks.append(ranks)
            losses = losses_of(ranks)
            lines = table(rows_of(ranks, self._looks[0]), _ROOM, _COLUMNS)
            self._show("\n".join([*lines, *loss_lines(losses)]), _as_html(lines, losses))

    def _show(self, text: str, html: str, *, again: bool = True) -> None:
        if self._display is not None:
            self._display.publish({"text/plain": text, "text/html": html}, transient=self._name, update=again)


def _as_html(lines: Sequence[str], losses: Sequence[float]) -> str:
    """Return the table, and the curve of the losses as SVG, which a browser draws without flicker."""
    style = "margin:0; padding:0 8px; font-size:13px; white-space:pre; overflow-x:auto"
    text = f'<pre style="{style}">{escape(chr(10).join(lines))}</pre>'
    known = list(filter(math.isfinite, losses))  # a training that diverges logs NaN
    if len(known) < 2:
        return text
    low, high = min(known), max(known)
    places = [
        f"{number * _WIDTH / (len(known) - 1):.1f},{_HEIGHT * (high - loss) / (high - low or 1):.1f}"
        for number, loss in enumerate(known)
    ]
    return (
        f'{text}<svg width="{_WIDTH + 80}" height="{_HEIGHT + 20}" viewBox="-10 -10 {_WIDTH + 80} {_HEIGHT + 20}"'
        ' fill="currentColor" font-size="12">'
        f'<polyline points="{" ".join(places)}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
        f'<text x="{_WIDTH / 2}" y="4">loss {losses[-1]:.4g}</text>'
        f'<text x="{_WIDTH + 8}" y="4">{high:.4g}</text><text x="{_WIDTH + 8}" y="{_HEIGHT + 4}">{low:.4g}</text></svg>'
    )
