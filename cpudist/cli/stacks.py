"""`cpudist stacks`: show what every rank of a running job is doing."""

from __future__ import annotations

import argparse
import os

from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.job.stack_server import SIGNAL, ask_ranks
from cpudist.launchers import Launcher

HELP = "show what every rank of a running job is doing"
DESCRIPTION = f"""\
Show for every rank of your jobs on this host the call that it waits in, the line of the script and the stacks of all
threads. The ranks are not disturbed. On several hosts, run it on each.
A rank also writes its stacks to its own standard error on signal {int(SIGNAL)}: kill -{int(SIGNAL)} PROCESS
"""
EPILOG = None


def add_options(_parser: Parser) -> None:
    """Add no option."""


def run(_options: argparse.Namespace, _launcher: Launcher) -> None:
    """Print the stacks of this host's ranks, or raise `UserError` if there are none."""
    answers = ask_ranks()
    if not answers:
        raise UserError("no rank of yours runs on this host; run cpudist stacks where the job runs, as the same user")
    jobs = {(address.job, user): address.size for address, user, _ in answers}
    for (job, user), size in jobs.items():
        texts = [text for address, owner, text in answers if (address.job, owner) == (job, user)]
        whose = "" if user == os.getuid() else f" of user {user}"
        print(f"job of {job}{whose}: {len(texts)} of {size} ranks are on this host\n")
        print("\n".join(texts))
