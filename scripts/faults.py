"""Break jobs in every way that the tests know, and print how each one ended, as tables.

    scripts/faults.sh [--mpi intel,mpich,openmpi] [--launch] [--timeout 20] [FAULT ...]
    scripts/faults.sh --uses [USE ...] [FAULT ...]

Jobs of 2 hosts x 2 ranks are started by each MPI's own mpirun and by `cpudist launch`. A cell of the table holds the
seconds from the fault until the launcher had returned and no process of the job was left on any host, and the exit
status. "LEFT" names processes that had to be killed. What each job wrote goes to standard error.

--uses: two ranks run loops as users write them (tests/supervision/checks/loops.py), and rank 1 has the fault. A cell
holds the seconds and the exit status of all these loops, and what differs from what docs/reliability.md promises.
"""

import argparse
import math
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import faults
import uses
from bed import missing


def main() -> None:
    """Print the table; exit with status 1 if a job ended otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", default="intel,mpich,openmpi")
    parser.add_argument("--launch", action="store_true", help="only the jobs that `cpudist launch` starts")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--uses", action="store_true", help=f"loops as users write them, of {', '.join(uses.USES)}")
    parser.add_argument("names", nargs="*", metavar="FAULT|USE", help=f"of {', '.join(faults.FAULTS)}; all by default")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    sys.exit(_loops(options.names) if options.uses else _on_hosts(options))


def _loops(names: list[str]) -> bool:
    """Print a row for each fault; return whether a loop ended otherwise than promised."""
    print(f"| fault | {' | '.join(uses.WAYS)} |\n|---|{'---|' * len(uses.WAYS)}", flush=True)
    wrong = False
    loops = [name for name in uses.USES if name in names] or uses.USES
    for fault in [name for name in uses.FAULTS if name in names] or uses.FAULTS:
        cells = []
        for way in uses.WAYS:
            tried = loops if uses.has(way, fault) else ()
            with ThreadPoolExecutor(3) as pool:  # most of the time they wait
                endings = dict(zip(tried, pool.map(partial(_run, fault, way), tried), strict=True))
            found = {name: short for name, one in endings.items() if (short := one.shortcomings(fault))}
            for name in found:
                print(f"{name}, {fault}, {way}:", endings[name].output, sep="\n", file=sys.stderr, flush=True)
            wrong = wrong or bool(found)
            cells.append(_range(list(endings.values())) + (f" **{found}**" if found else ""))
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)
    return wrong


def _run(fault: str, way: str, use: str) -> uses.Ending:
    try:
        return uses.run(use, fault, way)
    except AssertionError as error:  # the job did not end, or left processes behind
        return uses.Ending(None, math.inf, str(error))


def _range(endings: list[uses.Ending]) -> str:
    """Return the seconds of all endings with the same exit status, as in "0.3-1.2 s, 1"."""
    seconds = defaultdict(list)
    for one in endings:
        seconds[one.status].append(one.seconds)
    return "; ".join(f"{min(some):.1f}-{max(some):.1f} s, {status}" for status, some in seconds.items()) or "-"


def _on_hosts(options: argparse.Namespace) -> bool:
    """Print a row for each fault of a job on 2 hosts x 2 ranks; return whether one ended otherwise than it should."""
    ways = [faults.Way(mpi, launch) for launch in (False, True)[options.launch :] for mpi in options.mpi.split(",")]
    print(f"| fault | {' | '.join(map(str, ways))} |\n|---|{'---|' * len(ways)}", flush=True)
    wrong = False
    for fault in options.names or faults.FAULTS:
        cells = []
        for way in ways:
            if faults.FAULTS[fault].launch_only and not way.launch:
                cells.append("-")
                continue
            ending = faults.run(way, fault, options.timeout)
            right = ending.is_right(fault, options.timeout)
            wrong = wrong or not right
            said = [line for line in ending.output.splitlines() if line.startswith("cpudist: ") or not right]
            print(f"{fault}, {way}:", *said, sep="\n  ", file=sys.stderr, flush=True)
            left = f" LEFT: {ending.left}" if ending.left else ""
            cells.append(f"{ending.seconds:.1f} s, {ending.returncode}{'' if right else ' **wrong**'}{left}")
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)
    return wrong


if __name__ == "__main__":
    main()
