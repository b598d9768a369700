"""Train a recipe on 2 hosts x 2 ranks under random faults with restarts, and compare it with a run without faults.

    python tools/long_run.py [--steps 60000] [--every 180] [--seed 0]

As root: the hosts are namespaces of this machine. Every 180 seconds a rank is killed or stopped, or the store or all
ssh connections of the first host are killed. Prints each fault, and at the end both losses and the share of time lost.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import sysconfig
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bed import Bed, missing
from hosts.faults import CACHE, _rank_of
from jobs import BIN

_MODEL = ["--config_overrides", "n_layer=2,n_embd=128,n_head=4", "--vocab_size", "1024", "--block_size", "64"]
_LAST = 50  # steps whose mean is the loss at the end


def main() -> None:
    """Print what happened; exit with status 1 if a run did not come to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--every", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder:
        seconds, loss, _ = _train(Path(folder) / "plain", options.steps, None)
        print(f"without faults: {seconds:.0f} s, loss {loss:.4f}", flush=True)
        strikes = _Strikes(options.every, options.seed)
        with_faults, loss, said = _train(Path(folder) / "faults", options.steps, strikes)
    restarts = [line for line in said if "starting again (" in line]
    print(f"with {strikes.count} faults: {with_faults:.0f} s, loss {loss:.4f}, {len(restarts)} restarts")
    print(f"share of time lost: {1 - seconds / with_faults:.3f}")


class _Strikes:
    """Breaks the job on `bed` again and again until `over` is set."""

    def __init__(self, every: float, seed: int) -> None:
        self.count = 0
        self.over = threading.Event()
        self._every = every
        self._chance = random.Random(seed)

    def run(self, bed: Bed) -> None:
        """Strike until it is over."""
        while not self.over.wait(self._every):
            what = self._chance.choice(["rank killed", "rank stopped", "store killed", "ssh lost"])
            with suppress(psutil.Error, IndexError):  # it is just starting again
                if what.startswith("rank"):
                    rank = self._chance.choice(_ranks(bed))
                    rank.kill() if what == "rank killed" else rank.suspend()
                elif what == "store killed":
                    _find(bed, "h0", "cpudist.store.serve")[0].kill()
                else:
                    for process in _find(bed, "h0", "ssh"):
                        if process.name() == "ssh":
                            process.kill()
                self.count += 1
                print(f"{time.strftime('%T')} {what}", flush=True)


def _find(bed: Bed, host: str, words: str) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid, line in bed.processes(host).items() if words in line]


def _ranks(bed: Bed) -> list[psutil.Process]:
    found = [process for host in ("h0", "h1") for process in _find(bed, host, "cpudist-train")]
    return [process for process in found if process.name().startswith("python") and _rank_of(process) >= 0]


def _train(folder: Path, steps: int, strikes: _Strikes | None) -> tuple[float, float, list[str]]:
    """Train to the end; return the seconds, the loss at the end, and cpudist's lines."""
    (folder / "bed").mkdir(parents=True)
    output, text = folder / "out", f"{sysconfig.get_path('stdlib')}/*.py"
    with Bed(folder / "bed") as bed:
        words = [
            "launch",
            "--hostfile",
            bed.hostfile(),
            "--ppn",
            "2",
            "--max-restarts",
            "1000",
            "--",
            "--timeout",
            "20",
        ]
        words += ["clm", *_MODEL, "--train_file", text, "--output_dir", str(output), "--do_train"]
        words += ["--max_steps", str(steps), "--save_steps", "100", "--save_total_limit", "2", "--logging_steps", "1"]
        words += ["--learning_rate", "1e-3", "--per_device_train_batch_size", "4", "--disable_tqdm", "true"]
        began = time.monotonic()
        if strikes is not None:
            threading.Thread(target=strikes.run, args=(bed,), daemon=True).start()
        ended = bed.watch("h0", [str(BIN / "cpudist"), *words], 24 * 3600, CACHE)
        if strikes is not None:
            strikes.over.set()
    seconds = ended.at - began
    said = [line for line in ended.output.splitlines() if line.startswith("cpudist: ")]
    if ended.returncode or ended.left:
        sys.exit(f"status {ended.returncode}, left: {ended.left}\n{ended.output[-4000:]}")
    state = json.loads((output / f"checkpoint-{steps}" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry][-_LAST:]
    return seconds, sum(losses) / len(losses), said


if __name__ == "__main__":
    main()
