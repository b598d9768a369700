"""`cpudist summary`: show one run in a table, or several runs side by side."""

import argparse
import shutil
from pathlib import Path

from cpudist.cli.parser import Parser
from cpudist.launchers import Launcher
from cpudist.observability import summary

HELP = "compare runs: speed, communication, loss"
DESCRIPTION = """\
Show runs side by side: ranks, backend, speed, share of communication, restarts, loss and its curve, and which options
differ. Of a single run, also the ranks that made the others wait. A RUN is a folder of `runs` or all of it, an output
folder of Trainer, or a run record (cpudist-train --record).
"""
EPILOG = """\
examples:
  all runs in this folder:
    cpudist summary runs
  two runs of a Trainer:
    cpudist summary out/lr-1e-4 out/lr-3e-4
"""


def add_options(parser: Parser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="an output folder, or a run record")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    runs = [summary.read(path) for given in options.runs for path in summary.runs_in(given)]
    print(summary.table(runs, shutil.get_terminal_size().columns))
    if len(runs) == 1 and (ranks := summary.waiting(runs[0])):
        print("", *ranks, sep="\n")
    if differing := summary.differences(runs):
        print("\ndifferent options:", *differing, sep="\n  ")
