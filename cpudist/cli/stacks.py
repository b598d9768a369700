"""`cpudist stacks`: where every rank of a running job is."""

from __future__ import annotations

import argparse

from cpudist.cli.parser import Parser
from cpudist.environments import Environment
from cpudist.errors import UserError
from cpudist.stacks.address import SIGNAL
from cpudist.stacks.ask import ask_all

_DESCRIPTION = f"""\
Show where every rank of your jobs on this host is: the call that it waits in, the line of the script and all threads'
stacks. Ranks go on undisturbed. On several hosts, run it on each.
A rank also writes its stacks to its own standard error on signal {int(SIGNAL)}: kill -{int(SIGNAL)} PROCESS
"""


def add_parser(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command `stacks`."""
    parser = commands.add_parser(
        "stacks",
        help="where every rank of a running job is",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(action=_stacks, every_rank=False)


def _stacks(_options: argparse.Namespace, environment: Environment) -> None:
    if not environment.speaks:
        return
    answers = ask_all()
    if not answers:
        raise UserError("no rank of yours runs on this host; run cpudist stacks where the job runs, as the same user")
    jobs = {address.job: address.size for address, _ in answers}
    for job, size in jobs.items():
        texts = [text for address, text in answers if address.job == job]
        print(f"job of {job}: {len(texts)} of {size} ranks are on this host\n")
        print("\n".join(texts))
