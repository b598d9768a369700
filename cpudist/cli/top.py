"""`cpudist top`: show the ranks of running jobs, live."""

import argparse
import json
import select
import shutil
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cpudist.cli.parser import Parser
from cpudist.cli.stacks import Jobs, ask
from cpudist.console import size
from cpudist.errors import UserError
from cpudist.hosts.hostfile import read
from cpudist.launchers import Launcher
from cpudist.launchers.mpi_launcher import Host
from cpudist.observability import product_speed
from cpudist.observability.rank_answers import RankStacks
from cpudist.observability.rank_table import SAMPLES, loss_lines, losses_of, rows_of, table

HELP = "watch the ranks of running jobs"
DESCRIPTION = """\
Show your jobs on this host, or on the hosts of a file, every few seconds: for each rank its steps, the share of time in
which it waits for the others, makes them wait, and loads data; how many cores it keeps busy, and its threads; its
memory, and what it is doing. Below them the loss, as Trainer logs it. The ranks are not disturbed.
Type a rank's number and Enter for its stacks; q and Enter, or Ctrl-C, to leave. Without a job it waits for one, and
without a terminal it prints one table.
"""
EPILOG = """\
examples:
  the jobs of this host, or of all hosts of a job:
    cpudist top
    cpudist top --hostfile hosts
  for a program:
    cpudist top --once --json
"""

_SECONDS, _SECONDS_BY_SSH = 2.0, 5.0  # sampling intervals; over ssh each sample starts a Python on every host
_CLEAR = "\033[H\033[J"
_OTHER_LINES = 4  # A job also has lines for its name, the table's head, the number of hidden ranks, and the loss.


def add_options(parser: Parser) -> None:
    parser.add_argument("--hostfile", dest="hosts", type=read, metavar="FILE", help="the jobs on these hosts, over ssh")
    parser.add_argument("--once", action="store_true", help="show one table, of the next seconds")
    parser.add_argument("--json", action="store_true", help="with --once: as JSON")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Show the ranks until the user leaves, also those of jobs that start later."""
    if options.json and not options.once:
        raise UserError("--json is for one table; give --once too")
    hosts = options.hosts
    looks = deque([_look(hosts, "asking the hosts")], SAMPLES)
    live = sys.stdout.isatty() and not options.once
    if not looks[0] and not live:
        where = "these hosts" if hosts else "this host"
        raise UserError(f"no rank of yours runs on {where}; run cpudist top where the job runs, as the same user")
    while True:
        word = _typed(_SECONDS_BY_SSH if hosts else _SECONDS, live)
        if word == "q":
            return
        if word.isdecimal():
            _show_stacks(looks[-1], int(word))
            continue
        looks.append(_look(hosts))
        jobs = {name: rows_of(ranks, looks[0].get(name, {})) for name, ranks in looks[-1].items()}
        if options.json:
            print(json.dumps([{"job": job, "user": user, "ranks": rows} for (job, user), rows in jobs.items()]))
        else:
            _show(looks[-1], jobs, live)
        if not live:
            return


def _look(hosts: Sequence[Host] | None, task: str = "") -> Jobs:
    """Ask all ranks for their figures."""
    jobs, missing = ask(hosts, task)
    if missing:
        raise UserError("\n".join(missing))
    return jobs


def _typed(seconds: float, live: bool) -> str:
    """Return the line that the user types within `seconds`; empty if there is none."""
    sources = [sys.stdin] if live and sys.stdin.isatty() else []
    ready, _, _ = select.select(sources, [], [], seconds)
    return sys.stdin.readline().strip() if ready else ""


def _show(look: Jobs, jobs: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]], live: bool) -> None:
    """Print a table for each job. If `live`, clear the terminal first, and print no more lines than fit."""
    columns, lines = shutil.get_terminal_size() if live else (sys.maxsize, sys.maxsize)
    rooms = _rooms([len(rows) for rows in jobs.values()], lines - 1 - _OTHER_LINES * len(jobs))
    pairs = zip(jobs.items(), rooms, strict=True)
    texts = [_text(name[0], look[name], rows, room, columns) for (name, rows), room in pairs]
    shown = [line for text in texts for line in text] or ["no job of yours runs here; waiting for the next one"]
    print(_CLEAR * live + "\n".join(line[:columns] if live else line for line in shown), flush=True)


def _rooms(ranks: Collection[int], free: int) -> list[int]:
    """Divide `free` lines evenly between jobs, given each job's number of ranks; at most two lines for each rank."""
    rooms = dict.fromkeys(range(len(ranks)), 1)
    for left, (need, number) in enumerate(sorted((2 * count, number) for number, count in enumerate(ranks))):
        rooms[number] = max(min(need, free // (len(ranks) - left)), 1)
        free -= rooms[number]
    return [*rooms.values()]


def _show_stacks(look: Jobs, rank: int) -> None:
    texts = [ranks[rank].text for ranks in look.values() if rank in ranks]
    print(_CLEAR + "\n".join(texts or [f"there is no rank {rank}"]), "Enter: back", sep="\n", flush=True)
    sys.stdin.readline()


def _text(
    job: str, ranks: Mapping[int, RankStacks], rows: Sequence[Mapping[str, Any]], room: int, width: int = sys.maxsize
) -> list[str]:
    """Return the lines that show a job; at most `room` of them show its ranks."""
    total = max(one.address.size for one in ranks.values())
    restarts = max((row["restarts"] or 0 for row in rows), default=0)
    sent = max((row["bytes_per_second"] or 0 for row in rows), default=0)
    saved = next((row["checkpoint"] for row in rows if row["checkpoint"]), None)
    speed = next(filter(None, (product_speed.text(one.figures) for one in ranks.values())), "")
    notes = (
        f"job of {job}: {len(rows)} of {total} ranks",
        speed,
        f"each communicates {size(sent)}/s" if sent else "",
        f"restart {restarts}" if restarts else "",
        f"{saved} saved" if saved else "",
    )
    return [", ".join(filter(None, notes)), *table(rows, room, width=width), *loss_lines(losses_of(ranks))]
