"""Show the ranks of a job as a table, and its loss, in `cpudist top` and a notebook's cell."""

import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cpudist.console import aligned, curve, size
from cpudist.observability.rank_answers import RankStacks
from cpudist.supervision.rank_status import RankStatus

SAMPLES = 8  # Rates are taken over so many samples: a step may take longer than a sampling interval.
COLUMNS = {  # Columns of the table: the heading and the number format of each figure.
    "rank": ("rank", ""),
    "host": ("host", ""),
    "steps": ("steps", ""),
    "steps_per_second": ("steps/s", ".3g"),
    "samples_per_second": ("samples/s", ".3g"),
    "waits": ("waits", ".0%"),
    "delays": ("delays", ".0%"),
    "loads": ("loads", ".0%"),
    "cores": ("cores", ""),
    "memory": ("memory", ""),
    "doing": ("doing", ""),
}


def rows_of(ranks: Mapping[int, RankStacks], before: Mapping[int, RankStacks]) -> list[dict[str, Any]]:
    """Return the figures of a job's ranks between two samples; None for a figure that a rank does not report."""
    rows = [_row(one, before[rank].figures if rank in before else {}) for rank, one in ranks.items()]
    found = straggler_delays({row["rank"]: row["waits"] for row in rows if row["waits"] is not None})
    return [{**row, "delays": found.get(row["rank"])} for row in rows]


def _row(one: RankStacks, before: Mapping[str, Any]) -> dict[str, Any]:
    now = one.figures
    seconds = now.get("at", 0.0) - before.get("at", 0.0)

    def rate(name: str) -> float | None:
        known = now.get(name) is not None and before.get(name) is not None and seconds > 0
        return (now[name] - before[name]) / seconds if known else None

    return {
        "rank": one.address.rank,
        "host": now.get("host"),
        "steps": now.get("steps"),
        "steps_per_second": rate("steps"),
        "samples_per_second": rate("samples") or None,
        "waits": rate("waited"),
        "loads": rate("loading"),
        "cores": rate("processor"),
        "threads": now.get("threads"),
        "memory": now.get("memory"),
        "bytes_per_second": rate("bytes"),
        "restarts": now.get("restarts"),
        "checkpoint": now.get("checkpoint"),
        "doing": one.text.partition("): ")[2].partition("\n")[0] or one.text.partition("\n")[0],
    }


def straggler_delays(waits: Mapping[int, float]) -> dict[int, float]:
    """Return the straggler delay of each rank from the communication waits of all; empty for one rank."""
    others = {rank: [share for other, share in waits.items() if other != rank] for rank in waits}
    return {rank: max(statistics.median(shares) - waits[rank], 0.0) for rank, shares in others.items() if shares}


def waiting(statuses: Mapping[int, RankStatus]) -> list[dict[str, Any]]:
    """Return each rank's communication wait and straggler delay as shares of its training time, if known."""
    shares = {
        rank: one.pace.communication_share
        for rank, one in statuses.items()
        if one.pace and one.pace.communication_share is not None
    }
    return [
        {"rank": rank, "host": statuses[rank].host, "waits": round(shares[rank], 4), "delays": round(share, 4)}
        for rank, share in straggler_delays(shares).items()
    ]


def table(
    rows: Sequence[Mapping[str, Any]], room: int, columns: Sequence[str] = tuple(COLUMNS), width: int = sys.maxsize
) -> list[str]:
    """Return at most `room` ranks as lines, preferring the ranks that make the others wait longest.

    If lines are longer than `width`, the rank's activity is on a second line. If `room` is too small for second lines,
    only the line of code is shown.
    """
    shown = sorted(sorted(rows, key=lambda row: -(row["delays"] or 0))[:room], key=lambda row: int(row["rank"]))
    lines = _lines(shown, columns)
    if max(map(len, lines)) > width:
        head, *lines = _lines(shown, [name for name in columns if name != "doing"])
        if 2 * len(shown) <= room:
            lines = [part for line, row in zip(lines, shown, strict=True) for part in (line, f"      {row['doing']}")]
        else:
            left = max(width - max(map(len, (head, *lines))) - 2, 0)
            places = [{**row, "doing": _place(row["doing"], left)} for row in shown]
            head, *lines = _lines(places, columns)
        lines = [head, *lines]
    if len(rows) > len(shown):
        lines.append(f"and {len(rows) - len(shown)} more ranks, which delay the others less")
    return lines


def _place(doing: str, width: int) -> str:
    """Return the line of code in a rank's text, such as train.py:91; its beginning is cut if it is too wide."""
    found = re.search(r"[^\s(]+:\d+", doing)
    place = found[0] if found else doing[:width]
    return place if len(place) <= width else "…" + place[len(place) - width + 1 :]


def losses_of(ranks: Mapping[int, RankStacks]) -> list[float]:
    """Return the newest losses of the first rank on which Trainer or the script has logged some."""
    return next((one.figures["losses"] for one in ranks.values() if one.figures.get("losses")), [])


def loss_lines(losses: Sequence[float]) -> list[str]:
    """Return a line with the loss and its curve; no line if no loss was logged."""
    return [f"loss {losses[0]:.4g} to {losses[-1]:.4g}  {curve(losses)}"] if losses else []


def _lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    if not any(row.get("samples_per_second") for row in rows):  # samples are counted only if shares divide the batches
        columns = [name for name in columns if name != "samples_per_second"]
    return aligned([[COLUMNS[name][0] for name in columns], *(_cells(row, columns) for row in rows)])


def _cells(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    shown = {**row, "memory": row.get("memory") and size(row["memory"])}
    if row.get("cores") is not None:
        shown["cores"] = f"{row['cores']:.2f}/{row['threads']}"
    return ["" if shown[name] is None else format(shown[name], COLUMNS[name][1]) for name in columns]
