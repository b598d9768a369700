"""`cpudist forecast`: predict the speed of a training on more hosts."""

import argparse
import json
import re
from pathlib import Path

from cpudist.bench import cluster_figures, rank_counts
from cpudist.cli.parser import Parser, count
from cpudist.console import aligned, say, size
from cpudist.errors import UserError
from cpudist.hosts.hostfile import read, shares
from cpudist.launchers import Launcher
from cpudist.observability import forecast, summary
from cpudist.pinning import measured_ranks
from cpudist.script.target import resolve

HELP = "how a training would do on more hosts"
DESCRIPTION = """\
Forecast a training on several hosts with each --compress: a step's time, efficiency against one host, memory of a rank.
The script makes its steps here first. RUN is an output folder of Trainer or the record of a run with --timeline. Each
rank keeps its batch size; with --hostfile, hosts have the relative speeds of their `share=`, as with --balance. Rows of
RUN, and of further runs after it, also show the measured time of a step.
"""
EPILOG = """\
examples:
  a script, on the network that the last `cpudist test` has measured:
    cpudist forecast --hosts 2,4,8 -- train.py --batch_size 8
  the run with --timeline in the folder out, on a network of 1 Gbit/s:
    cpudist forecast out --hosts 2,4,8 --network 1gbit
  how far off it was, once the run on 4 hosts in out4 has been made:
    cpudist forecast out out4 --network 1gbit
"""
_BITS = {"mbit": 1e6, "gbit": 1e9}
_USABLE = 0.9  # Usable share of a network's rate; large allreduces reach 0.9 to 0.95 (docs/ccl-backend.md).
_HEAD = ("hosts", "--compress", "step", "measured", "samples/s", "efficiency", "memory/rank")


def add_options(parser: Parser) -> None:
    parser.add_argument("words", nargs="+", metavar="RUN", help="a folder or record, or -- SCRIPT.py [ARGS...]")
    numbers = "numbers of hosts, such as 2,4,8 (default)"
    parser.add_argument("--hosts", type=lambda text: [*map(count, text.split(","))], default=[2, 4, 8], help=numbers)
    rate = "such as 1gbit (default: that of cpudist test)"
    parser.add_argument("--network", type=network_rate, metavar="RATE", help=rate)
    parser.add_argument("--hostfile", type=read, metavar="FILE", help="hosts with shares; the first is one of the run")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    name, *words = options.words
    bandwidth = options.network or cluster_figures.last_bandwidth()
    if bandwidth is None:
        raise UserError("the network is not known; give --network 1gbit, or run cpudist test --hostfile hosts first")
    if name.endswith(".py") or (name == "-m" and words):
        if name != "-m":
            resolve(name, words)
        say("the script makes its steps here first")
        records = [rank_counts.one(measured_ranks.load() or 1, [name, *words]).record]
    else:
        records = [summary.read(Path(word)).record for word in options.words]
    forecast.check(records[0], name)
    measured = {forecast.kind(record): (record.get("step_seconds") or {}).get("median") for record in records}
    numbers = sorted({1, *options.hosts, *(hosts for hosts, _ in measured)})
    schemes = forecast.SCHEMES if records[0]["backend"] == "ccl" else ["none"]
    pairs = [(hosts, scheme) for hosts in numbers for scheme in (schemes if hosts > 1 else ["none"])]
    parts = shares(options.hostfile or ()) or [1.0] * numbers[-1]
    if numbers[-1] > len(parts):
        raise UserError(f"the hostfile has {len(parts)} hosts; give --hosts up to {len(parts)}, or add hosts")
    found = [
        forecast.forecast(records[0], *pair, bandwidth, parts)._replace(measured=measured.get(pair)) for pair in pairs
    ]
    if options.json:
        print(json.dumps({"bandwidth": bandwidth, "forecasts": [one._asdict() for one in found]}, indent=2))
    else:
        print(*aligned([_HEAD, *map(_row, found)]), "", forecast.advice(found), sep="\n")


def _row(one: forecast.Forecast) -> tuple[str, ...]:
    step, measured = (f"{1000 * seconds:.0f} ms" if seconds else "" for seconds in (one.step, one.measured))
    speed = f"{one.samples_per_second:.4g}" if one.samples_per_second else ""
    return f"{one.hosts}", one.compress, step, measured, speed, f"{one.efficiency:.2f}", size(one.memory)


def network_rate(text: str) -> float:
    """Return the usable bytes per second of a network with a rate such as 10gbit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"give a rate such as 100mbit or 10gbit, not {text!r}")
    return _USABLE * float(found[1]) * _BITS[found[2]] / 8
