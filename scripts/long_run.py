"""Train a model on 2 hosts x 2 ranks under random faults with restarts, and beside it without faults; compare the two.

    python scripts/long_run.py [--hours 2] [--every 180] [--seed 0]

As root: the hosts are namespaces of this machine. Every 180 seconds a rank is killed or stopped, or the store or all
ssh connections of the first host are killed. Prints each fault, and at the end the steps of both jobs, and both losses
after as many steps. Both run at the same time, so that whatever else the machine does slows both.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

from bed import Bed, missing
from faults import Job
from jobs import launch

from cpudist.checkpoints.folders import numbered
from cpudist.waiting import poll

_SCRIPT = str(Path(__file__).resolve().parents[1] / "examples" / "language_model.py")
_LAST = 50  # steps whose mean is the loss at the end
_END_SECONDS = 60.0  # until a job has ended after SIGTERM


def main() -> None:
    """Print what happened; exit with status 1 if a job did not come to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--every", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    chance, end = random.Random(options.seed), time.monotonic() + options.hours * 3600
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        jobs = [_start(Path(folder) / name, stack) for name in ("whole", "broken")]
        while time.monotonic() + options.every < end:
            time.sleep(options.every)
            print(f"{time.strftime('%T')} {_strike(jobs[1][0], chance)}", flush=True)
        time.sleep(max(end - time.monotonic(), 0))
        losses = [_end(*job) for job in jobs]
        restarts = (jobs[1][0].folder / "log").read_text().count("starting again (")
    last = min(map(len, losses))
    for name, values in zip(("without faults", "with faults"), losses, strict=True):
        print(f"{name}: {len(values)} steps, loss {fmean(values[:last][-_LAST:]):.4f} after {last} steps")
    print(f"{restarts} restarts, {1 - len(losses[1]) / len(losses[0]):.3f} of the steps lost")


def _start(folder: Path, stack: ExitStack) -> tuple[Job, subprocess.Popen[bytes]]:
    """Start a training on a bed of its own; Trainer's log is in each checkpoint."""
    (folder / "bed").mkdir(parents=True)
    job = Job(stack.enter_context(Bed(folder / "bed")), folder, 0)
    text = sorted(map(str, Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")))
    words = ["--hostfile", job.bed.hostfile(), "--ppn", "2", "--max-restarts", "1000", "--"]
    words += ["--timeout", "30", "--compress", "none"]  # auto would choose by what it measures: another loss
    words += [_SCRIPT, "--config_overrides", "n_layer=2,n_embd=64,n_head=4", "--vocab_size", "512"]
    words += ["--block_size", "64", "--train_files", *text, "--output_dir", str(folder / "out")]
    words += ["--max_steps", "10000000", "--lr_scheduler_type", "constant", "--logging_steps", "1"]
    words += ["--save_steps", "100", "--save_total_limit", "2"]
    words += ["--learning_rate", "1e-3", "--per_device_train_batch_size", "4", "--disable_tqdm", "true"]
    return job, job.bed.start("h0", launch(*words), folder / "log", {"HF_DATASETS_CACHE": str(folder / "data")})


def _strike(job: Job, chance: random.Random) -> str:
    """Break the job; it may be just starting again, and then nothing happens."""
    what = chance.choice(["rank killed", "rank stopped", "store killed", "ssh lost"])
    with suppress(psutil.Error, LookupError):
        if what.startswith("rank"):
            rank = job.rank(chance.randrange(4), "cpudist-train")
            rank.kill() if what == "rank killed" else rank.suspend()
        elif what == "store killed":
            job.find("h0", "cpudist.store.server")[0].kill()
        else:
            job.kill_ssh()
        return what
    return f"no {what}"


def _end(job: Job, launching: subprocess.Popen[bytes]) -> list[float]:
    """End the job, and return the loss of each step; exit if it has ended before, or leaves processes."""
    with suppress(LookupError):
        job.find("h0", "cpudist launch")[0].terminate()
    status = launching.wait(_END_SECONDS)
    left = not poll(lambda: not any(map(job.bed.processes, job.bed.addresses)), _END_SECONDS)
    checkpoints = [*numbered(job.folder / "out").values()]
    if left or status != 128 + signal.SIGTERM or not checkpoints:
        sys.exit(f"status {status}, left: {left}, {checkpoints}\n{(job.folder / 'log').read_text()[-4000:]}")
    history = json.loads((checkpoints[-1] / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


if __name__ == "__main__":
    main()
