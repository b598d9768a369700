"""Kill a training job at random moments of saving a checkpoint, resume it, and print what each moment left behind.

    python tests/soak/kill_while_saving.py [--moments 50] [--seed 0] [--asynchronous]

examples/language_model.py on two ranks saves after every step, keeps two checkpoints, and goes on by itself from the
newest one, as after a restart by `cpudist launch`. Each time rank 0, rank 1 or both are killed, at a random moment of
its savings. Then all checkpoints that are there must be readable, and the next job must go on from the newest of them.

With --asynchronous it is a loop with Checkpoints(asynchronous=True), the function `train` below: of the steps whose
`save` had returned, at most the last one may be missing.
"""

import argparse
import collections
import itertools
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from jobs import mpirun
from jobs import train as cpudist_train

import cpudist
from cpudist.checkpoints import manifest
from cpudist.checkpoints.folders import numbered
from cpudist.waiting import poll

_EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "language_model.py")
_START_SECONDS = 120.0
_SAVING_SECONDS = 0.2  # the kill comes at most so long after a checkpoint was begun
_WORDS = ["--config_overrides", "n_layer=2,n_embd=256,n_head=4", "--vocab_size", "1024", "--block_size", "16"]
_WORDS += ["--max_steps", "100000", "--per_device_train_batch_size", "1", "--save_steps", "1"]
_WORDS += ["--save_total_limit", "2", "--logging_steps", "1000", "--disable_tqdm", "true"]
_WORDS += ["--train_files", str(Path(sysconfig.get_path("stdlib")) / "heapq.py"), "--output_dir"]


def main() -> int:
    """Print a line for each moment and a summary; return 1 if a checkpoint was broken or not resumed from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    found: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        output, newest = Path(folder) / "out", 0
        script = ["--backend", "gloo", __file__, "train"] if options.asynchronous else [_EXAMPLE, *_WORDS]
        command = mpirun(2, *cpudist_train(*script, str(output)))
        for moment in range(options.moments):
            victims = chance.choice([["0"], ["1"], ["0", "1"]])
            os.environ.update(CPUDIST_RUN_ID=str(os.getpid()), CPUDIST_RESTART_COUNT=str(moment))
            was, problem = _kill_once(command, output, victims, chance.random() * _SAVING_SECONDS, newest)
            if not problem:
                newest, problem = _look_at(output)
            says = problem or f"checkpoint-{newest} is whole"
            print(f"{moment + 1:3}  rank {' and '.join(victims)} killed, {was}: {says}", flush=True)
            found["broken" if problem else was] += 1
    print(f"\n{options.moments} moments, broken: {found['broken']}", *found.items(), sep="\n")
    return 1 if found["broken"] else 0


def _kill_once(command: list[str], output: Path, victims: list[str], delay: float, newest: int) -> tuple[str, str]:
    """Run one job and kill ranks `delay` seconds after it has begun its second checkpoint.

    Returns:
        What the job was doing then, and what is wrong (empty if nothing).
    """
    log = output.with_name("log")
    with log.open("w") as file:
        job = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        saved, incomplete = output / f"checkpoint-{newest + 1}", output / ".incomplete"
        if not poll(lambda: saved.is_dir() or job.poll() is not None, _START_SECONDS) or not saved.is_dir():
            return "", f"did not go on from checkpoint-{newest}: {log.read_text()[-2000:]}"
        ranks = _ranks()
        while not incomplete.is_dir() and job.poll() is None:
            time.sleep(0.001)
        time.sleep(delay)
        for rank in victims:
            ranks[rank].kill()
        left = [path.name for path in incomplete.glob("*") if path.is_dir()]
        deletes = any(name.startswith("old-") for name in left)
        was = "deleting" if deletes else "writing" if left else "before, after or between"
        job.wait(_START_SECONDS)
    finally:
        for process in _ranks().values():
            process.kill()
        job.wait()
    goes_on = f"going on from {output}/checkpoint-{newest}\n" in log.read_text()
    return was, "" if goes_on or not newest else f"went on from elsewhere than checkpoint-{newest}"


def _ranks() -> dict[str, psutil.Process]:
    """Return the ranks of the job that this process has started."""
    found = {}
    for process in psutil.process_iter(["environ", "cmdline"]):
        variables, words = process.info["environ"] or {}, process.info["cmdline"] or []
        if variables.get("CPUDIST_RUN_ID") == str(os.getpid()) and words[1:2] == cpudist_train():
            found[variables["PMI_RANK"]] = process
    return found


def _look_at(output: Path) -> tuple[int, str]:
    """Return the step of the newest checkpoint, and what is wrong with any of them (empty if nothing)."""
    checkpoints = numbered(output)
    if not checkpoints:
        return 0, "no checkpoint is left"
    newest = max(checkpoints)
    for step, checkpoint in checkpoints.items():
        problem, said = manifest.damage(checkpoint), manifest.read(checkpoint)
        if problem or said is None or said.step != step:
            return newest, f"{checkpoint.name} is broken: {problem or said}"
    file = output.with_name("saved")
    text = file.read_text() if file.exists() else ""  # empty while it is written
    return newest, f"step {text} had been saved" if text and int(text) > newest + 1 else ""


def train(output: Path) -> None:
    """Train without an end, and save each step in the background; a file beside `output` has the last step saved."""
    world = cpudist.init()
    model = cpudist.wrap(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = cpudist.Checkpoints(output, asynchronous=True)
    for step in itertools.count(checkpoints.restore(model=model, optimizer=optimizer) + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 512)).square().mean().backward()
        cpudist.step(optimizer)
        checkpoints.save(step, model=model, optimizer=optimizer)
        if world.rank == 0:
            output.with_name("saved").write_text(str(step))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]))
    else:
        sys.exit(main())
