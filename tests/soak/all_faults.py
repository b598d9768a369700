"""Break jobs of 2 hosts x 2 ranks in every way that the tests know, and print how each one ended.

    scripts/faults.sh [--mpi intel,mpich,openmpi] [--launch] [--timeout 20] [FAULT ...]

The jobs are started by each MPI's own mpirun and by `cpudist launch`. A cell of the table holds the seconds from the
fault until the launcher had returned and no process of the job was left on any host, and the exit status. "LEFT" names
processes that had to be killed. What each job wrote goes to standard error.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import faults
from bed import missing


def report(fault: str, endings: dict[faults.Way, faults.Ending | None], timeout: float) -> str:
    """Return a row of the table: seconds and exit status for each way to start the job; None: not for it."""
    cells = []
    for ending in endings.values():
        if ending is None:
            cells.append("-")
            continue
        wrong = "" if ending.is_right(fault, timeout) else " **wrong**"
        left = f" LEFT: {ending.left}" if ending.left else ""
        cells.append(f"{ending.seconds:.1f} s, {ending.status}{wrong}{left}")
    return f"| {fault} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table; exit with status 1 if a job ended otherwise than it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", default="intel,mpich,openmpi")
    parser.add_argument("--launch", action="store_true", help="only the jobs that `cpudist launch` starts")
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("fault", nargs="*", metavar="FAULT", help=f"of {', '.join(faults.FAULTS)}; all by default")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    ways = [faults.Way(mpi, launch) for launch in (False, True)[options.launch :] for mpi in options.mpi.split(",")]
    print(f"| fault | {' | '.join(map(str, ways))} |\n|---|{'---|' * len(ways)}", flush=True)
    bad = False
    for fault in options.fault or faults.FAULTS:
        possible = [way for way in ways if way.launch or not faults.FAULTS[fault].launch_only]
        endings = {way: faults.run(way, fault, options.timeout) if way in possible else None for way in ways}
        print(report(fault, endings, options.timeout), flush=True)
        for way in possible:
            ending = endings[way]
            print(f"{fault}, {way}:", *(f"  {line}" for line in ending.said), sep="\n", file=sys.stderr, flush=True)
            if not ending.is_right(fault, options.timeout):
                bad = True
                print(ending.output, file=sys.stderr, flush=True)
    sys.exit(bad)


if __name__ == "__main__":
    main()
