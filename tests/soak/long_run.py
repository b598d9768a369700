"""Train a model on 2 hosts x 2 ranks under random faults with restarts, and beside it without faults; compare the two.

    python tests/soak/long_run.py [--hours 2] [--every 180] [--seed 0]

As root: the hosts are namespaces of this machine. Every 180 seconds a rank is killed or stopped, or the store or all
ssh connections of the first host are killed. Prints each fault, and at the end both losses after as many steps, and the
share of time lost: from the last step before a failure until the step after it has been taken, of the whole time. Both
jobs run at the same time, so that whatever else the machine does slows both; SIGTERM to `cpudist launch` ends them.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import fmean

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from bed import Bed, missing
from faults import CACHE, _rank_of
from jobs import BIN

_MODEL = ["--config_overrides", "n_layer=2,n_embd=64,n_head=4", "--vocab_size", "512", "--block_size", "64"]
_SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "language_model.py")
_LAST = 50  # steps whose mean is the loss at the end
_END_SECONDS = 60.0  # until a job has ended after SIGTERM
_FAULTS = ["rank killed", "rank stopped", "store killed", "ssh lost"]


def main() -> None:
    """Print what happened; exit with status 1 if a run did not come to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        plain, broken = runs = [_Run(Path(folder) / name, options.hours * 3600) for name in ("plain", "faults")]
        strikes = _Strikes(options.every, options.seed)
        for end in [pool.submit(plain.train, None), pool.submit(broken.train, strikes)]:
            end.result()
    last = min(len(run.losses) for run in runs)
    for name, run in (("without faults", plain), ("with faults", broken)):
        loss = fmean(run.losses[:last][-_LAST:])
        print(f"{name}: {len(run.losses)} steps in {run.seconds:.0f} s, loss {loss:.4f} after {last} steps")
    print(f"{strikes.count} faults, {broken.restarts} restarts, {broken.again} steps taken again")
    print(f"lost: {broken.lost:.0f} s, {broken.lost / broken.seconds:.3f} of the time")


class _Strikes:
    """Breaks the job on a bed again and again until `over` is set."""

    def __init__(self, every: float, seed: int) -> None:
        self.count = 0
        self.over = threading.Event()
        self._every = every
        self._chance = random.Random(seed)

    def run(self, bed: Bed) -> None:
        """Strike until it is over."""
        while not self.over.wait(self._every):
            what = self._chance.choice(_FAULTS)
            with suppress(psutil.Error, IndexError):  # it is just starting again
                _strike(bed, what, self._chance)
                self.count += 1
                print(f"{time.strftime('%T')} {what}", flush=True)


def _strike(bed: Bed, what: str, chance: random.Random) -> None:
    if what.startswith("rank"):
        rank = chance.choice(_ranks(bed))
        rank.kill() if what == "rank killed" else rank.suspend()
    elif what == "store killed":
        _find(bed, "h0", "cpudist.store.serve")[0].kill()
    else:
        for process in _find(bed, "h0", "ssh"):
            if process.name() == "ssh":
                process.kill()


def _find(bed: Bed, host: str, words: str) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid, line in bed.processes(host).items() if words in line]


def _ranks(bed: Bed) -> list[psutil.Process]:
    found = [process for host in ("h0", "h1") for process in _find(bed, host, "cpudist-train")]
    return [process for process in found if process.name().startswith("python") and _rank_of(process) >= 0]


class _Run:
    """One training, and what its output tells while it runs.

    Attributes:
        losses: of each step, as it was taken first.
        seconds: from the start to the end.
        restarts: how often the job has gone on from a checkpoint, or from the beginning.
        again: steps that were taken more than once.
        lost: seconds from the last step before each failure until the step after it was taken.
    """

    def __init__(self, folder: Path, bound: float) -> None:
        self.losses: list[float] = []
        self.seconds, self.restarts, self.again, self.lost = 0.0, 0, 0, 0.0
        self._folder, self._bound = folder, bound
        self._step, self._at, self._behind = 0, 0.0, False
        (folder / "bed").mkdir(parents=True)

    def train(self, strikes: _Strikes | None) -> None:
        """Train until the time is over."""
        with Bed(self._folder / "bed") as bed:
            over = threading.Event()
            threads = [threading.Thread(target=self._follow, args=(over,))]
            if strikes is not None:
                threads.append(threading.Thread(target=strikes.run, args=(bed,)))
            for thread in threads:
                thread.start()
            variables = {**CACHE, "HF_DATASETS_CACHE": str(self._folder / "data")}
            timer = threading.Timer(self._bound, lambda: _find(bed, "h0", "cpudist launch")[0].terminate())
            timer.start()
            began = time.monotonic()
            try:
                ended = bed.watch("h0", self._command(bed), self._bound + _END_SECONDS, variables)
            finally:
                timer.cancel()
                over.set()
                if strikes is not None:
                    strikes.over.set()
                for thread in threads:
                    thread.join()
        if ended.returncode != 128 + signal.SIGTERM or ended.left:
            sys.exit(f"status {ended.returncode}, left: {ended.left}\n{ended.output[-4000:]}")
        self.seconds = ended.at - began

    def _command(self, bed: Bed) -> list[str]:
        text = sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")))
        words = ["launch", "--hostfile", bed.hostfile(), "--ppn", "2", "--max-restarts", "1000", "--"]
        words += ["--timeout", "30", "--compress", "none"]  # auto would choose by what it measures: another loss
        words += [_SCRIPT, *_MODEL, "--train_files", *text, "--output_dir", str(self._folder / "out")]
        words += ["--max_steps", "10000000", "--lr_scheduler_type", "constant"]
        words += ["--save_steps", "100", "--save_total_limit", "2"]
        words += ["--learning_rate", "1e-3", "--per_device_train_batch_size", "4", "--disable_tqdm", "true"]
        return [str(BIN / "cpudist"), *words, "--logging_steps", "1"]

    def _follow(self, over: threading.Event) -> None:
        """Read the job's output while it is written: one line for each step, and one for each restart."""
        output = self._folder / "bed" / "output.log"
        while not output.exists() and not over.wait(0.1):
            pass
        with output.open(errors="replace") as file:
            rest = ""
            while True:
                last = over.is_set()
                *lines, rest = (rest + file.read()).split("\n")
                for line in lines:
                    self._read(line)
                if last:
                    return
                over.wait(0.1)

    def _read(self, line: str) -> None:
        if "starting again (" in line:
            self.restarts += 1
            self._step, self._behind = 0, True
            print(f"{time.strftime('%T')} step {len(self.losses)}, {self.lost:.0f} s lost so far: {line}", flush=True)
        elif found := re.search(r"going on from \S*checkpoint-(\d+)", line):
            self._step = int(found[1])
        elif found := re.match(r"\{'loss': '?([-0-9.e]+)", line):
            self._step += 1
            if self._step <= len(self.losses):
                self.again += 1
                return
            if self._behind:
                self.lost += time.monotonic() - self._at
                self._behind = False
            self.losses.append(float(found[1]))
            self._at = time.monotonic()


if __name__ == "__main__":
    main()
