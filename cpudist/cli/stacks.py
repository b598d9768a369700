"""`cpudist stacks`: show what every rank of a running job is doing."""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence

from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.findings import Finding
from cpudist.hosts.hostfile import read
from cpudist.hosts.remote import ask_all, run_on, understood
from cpudist.launchers import Launcher
from cpudist.launchers.mpi_launcher import Host
from cpudist.observability.rank_answers import RankStacks, ask_ranks
from cpudist.observability.stack_server import SIGNAL
from cpudist.processes.procfs import python_main

HELP = "show what every rank of a running job is doing"
DESCRIPTION = f"""\
Show for every rank of your jobs on this host, in one line, the call that it waits in and the line of the script. The
ranks are not disturbed.
A rank also writes its stacks to its own standard error on signal {int(SIGNAL)}: kill -{int(SIGNAL)} PROCESS
"""

Jobs = dict[tuple[str, int], dict[int, RankStacks]]  # (job's name, user's id) -> rank -> its stacks

_SECONDS = 60.0  # a host may answer this late, since Python starts slowly on a busy host with a slow disk


def add_options(parser: Parser) -> None:
    parser.add_argument("--full", action="store_true", help="show the stacks of all threads of each rank, too")
    parser.add_argument("--hostfile", dest="hosts", type=read, metavar="FILE", help="ask these hosts instead, over ssh")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    jobs, missing = ask(options.hosts, "asking the hosts")
    where = "these hosts" if options.hosts else "this host"
    for (job, user), ranks in jobs.items():
        size = max(one.address.size for one in ranks.values())
        whose = "" if user == os.getuid() else f" of user {user}"
        texts = [one.text if options.full else one.text.partition("\n")[0] for one in ranks.values()]
        print(f"job of {job}{whose}: {len(ranks)} of {size} ranks are on {where}", *texts, sep="\n")
    if missing:
        raise UserError("\n".join(missing))
    if not jobs:
        raise UserError(f"no rank of yours runs on {where}; run cpudist stacks where the job runs, as the same user")


def ask(hosts: Sequence[Host] | None, task: str) -> tuple[Jobs, list[str]]:
    """Return the jobs on `hosts` (None: this host), and a line for each silent host; `task` is as in `ask_all`."""
    found, missing = _ask(hosts, task) if hosts else (ask_ranks(), [])
    jobs: Jobs = defaultdict(dict)
    for one in sorted(found):
        jobs[one.address.job, one.user][one.address.rank] = one  # one entry, even if a host has two names
    return jobs, missing


def _ask(hosts: Sequence[Host], task: str) -> tuple[list[RankStacks], list[str]]:
    path = [entry for entry in sys.path if entry]  # PYTHONPATH may be set on this host only
    words = python_main("cpudist.observability.rank_answers", path=path)

    async def ask_host(host: Host) -> list[RankStacks] | Finding:
        return understood(host, await run_on(host, words, _SECONDS), RankStacks.list_of)

    found = ask_all(hosts, ask_host, task)
    missing = [one.line for one in found if isinstance(one, Finding)]
    return [rank for ranks in found if not isinstance(ranks, Finding) for rank in ranks], missing
