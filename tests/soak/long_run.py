"""Train a model on 2 hosts x 2 ranks under random faults with restarts, and beside it without faults; compare the two.

    python tests/soak/long_run.py [--hours 2] [--every 180] [--seed 0]

As root: the hosts are namespaces of this machine. Every 180 seconds a rank is killed or stopped, or the store or all
ssh connections of the first host are killed. Prints each fault, and at the end both losses after as many steps, and the
share of time lost: from the last step before a failure until the step after it has been taken, of the whole time. Both
jobs run at the same time, so that whatever else the machine does slows both; SIGTERM to `cpudist launch` ends them.
"""

import argparse
import random
import re
import signal
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from bed import Bed, missing
from faults import Job
from jobs import launch

from cpudist.waiting import poll

_SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "language_model.py")
_LAST = 50  # steps whose mean is the loss at the end
_END_SECONDS = 60.0  # until a job has ended after SIGTERM


class _Training:
    """A training on a bed of its own, and what its output tells while it runs.

    Attributes:
        losses: of each step, as it was taken first.
        restarts: how often the job has gone on from a checkpoint, or from the beginning.
        again: steps that were taken more than once.
        lost: seconds from the last step before each failure until the step after it was taken.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        (folder / "bed").mkdir(parents=True)
        self.job = Job(stack.enter_context(Bed(folder / "bed")), folder, 0)
        self.losses: list[float] = []
        self.restarts, self.again, self.lost = 0, 0, 0.0
        self._step, self._at, self._behind, self._rest = 0, 0.0, False, ""
        text = sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")))
        words = ["--hostfile", self.job.bed.hostfile(), "--ppn", "2", "--max-restarts", "1000", "--"]
        words += ["--timeout", "30", "--compress", "none"]  # auto would choose by what it measures: another loss
        words += [_SCRIPT, "--config_overrides", "n_layer=2,n_embd=64,n_head=4", "--vocab_size", "512"]
        words += ["--block_size", "64", "--train_files", *text, "--output_dir", str(folder / "out")]
        words += ["--max_steps", "10000000", "--lr_scheduler_type", "constant", "--logging_steps", "1"]
        words += ["--save_steps", "100", "--save_total_limit", "2"]
        words += ["--learning_rate", "1e-3", "--per_device_train_batch_size", "4", "--disable_tqdm", "true"]
        variables = {"HF_DATASETS_CACHE": str(folder / "data")}
        self._launch = self.job.bed.start("h0", launch(*words), folder / "log", variables)
        self._log = stack.enter_context((folder / "log").open(errors="replace"))

    def read(self) -> None:
        """Read what has been written since: one line for each step, and one for each restart."""
        *lines, self._rest = (self._rest + self._log.read()).split("\n")
        for line in lines:
            if "starting again (" in line:
                self.restarts += 1
                self._step, self._behind = 0, True
                print(f"{time.strftime('%T')} step {len(self.losses)}: {line}", flush=True)
            elif found := re.search(r"going on from \S*checkpoint-(\d+)", line):
                self._step = int(found[1])
            elif found := re.match(r"\{'loss': '?([-0-9.e]+)", line):
                self._step += 1
                if self._step <= len(self.losses):
                    self.again += 1
                    continue
                self.lost += time.monotonic() - self._at if self._behind else 0
                self.losses.append(float(found[1]))
                self._at, self._behind = time.monotonic(), False

    def strike(self, chance: random.Random) -> None:
        """Break the job; it may be just starting again, and then nothing happens."""
        what = chance.choice(["rank killed", "rank stopped", "store killed", "ssh lost"])
        with suppress(psutil.Error, LookupError):
            if what.startswith("rank"):
                rank = self.job.rank(chance.randrange(4), "cpudist-train")
                rank.kill() if what == "rank killed" else rank.suspend()
            elif what == "store killed":
                self.job.find("h0", "cpudist.store.serve")[0].kill()
            else:
                self.job.kill_ssh()
            print(f"{time.strftime('%T')} {what}", flush=True)

    def end(self) -> None:
        """End the job; exit if it has ended before, or leaves processes."""
        with suppress(LookupError):
            self.job.find("h0", "cpudist launch")[0].terminate()
        status = self._launch.wait(_END_SECONDS)
        left = not poll(lambda: not any(map(self.job.bed.processes, ("h0", "h1"))), _END_SECONDS)
        self.read()
        if left or status != 128 + signal.SIGTERM:
            sys.exit(f"status {status}, left: {left}\n{Path(self._log.name).read_text()[-4000:]}")


def main() -> None:
    """Print what happened; exit with status 1 if a run did not come to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    chance, began = random.Random(options.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runs = {name: _Training(Path(folder) / name, stack) for name in ("without faults", "with faults")}
        broken, strikes = runs["with faults"], 0
        while (passed := time.monotonic() - began) < options.hours * 3600:
            for run in runs.values():
                run.read()
            if passed > options.every * (strikes + 1):
                broken.strike(chance)
                strikes += 1
            time.sleep(0.1)
        for run in runs.values():
            run.end()
    if not (last := min(len(run.losses) for run in runs.values())):
        sys.exit(f"a run took no step in {passed:.0f} s")
    for name, run in runs.items():
        print(f"{name}: {len(run.losses)} steps, loss {fmean(run.losses[:last][-_LAST:]):.4f} after {last} steps")
    print(f"{strikes} faults, {broken.restarts} restarts, {broken.again} steps taken again")
    print(f"lost: {broken.lost:.0f} s of {passed:.0f}, {broken.lost / passed:.3f} of the time")


if __name__ == "__main__":
    main()
