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
    wrong = 0
    for fault in options.fault or faults.FAULTS:
        cells = []
        for way in ways:
            if faults.FAULTS[fault].launch_only and not way.launch:
                cells.append("-")
                continue
            ending = faults.run(way, fault, options.timeout)
            right = ending.is_right(fault, options.timeout)
            wrong += not right
            said = [line for line in ending.output.splitlines() if line.startswith("cpudist: ") or not right]
            print(f"{fault}, {way}:", *said, sep="\n  ", file=sys.stderr, flush=True)
            left = f" LEFT: {ending.left}" if ending.left else ""
            cells.append(f"{ending.seconds:.1f} s, {ending.returncode}{'' if right else ' **wrong**'}{left}")
        print(f"| {fault} | {' | '.join(cells)} |", flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
