"""Kill ranks at random moments of saving a checkpoint, resume the job, and print what each moment left behind.

    python scripts/kill_while_saving.py [--moments 50] [--seed 0] [--asynchronous]

examples/language_model.py on two ranks saves after every step and keeps two checkpoints. Each time rank 0, rank 1 or
both kill themselves, at a random moment after the second checkpoint of the job is begun. Then all checkpoints must be
readable, and the next job must go on from the newest of them.

With --asynchronous it is a loop with Checkpoints(asynchronous=True), `train` below: of the steps whose `save` had
returned, at most the last one may be missing.
"""

import argparse
import collections
import itertools
import os
import random
import re
import runpy
import signal
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "helpers"))

import jobs

import cpudist
from cpudist.checkpoints import manifest
from cpudist.checkpoints.folders import INCOMPLETE, numbered

_EXAMPLE = str(Path(__file__).resolve().parents[1] / "examples" / "language_model.py")
_WORDS = ["--config_overrides", "n_layer=2,n_embd=256,n_head=4", "--vocab_size", "1024", "--block_size", "16"]
_WORDS += ["--max_steps", "100000", "--per_device_train_batch_size", "1", "--save_steps", "1"]
_WORDS += ["--save_total_limit", "2", "--logging_steps", "1000", "--disable_tqdm", "true"]
_WORDS += ["--train_files", str(Path(sysconfig.get_path("stdlib")) / "heapq.py"), "--output_dir"]
_VICTIMS, _DELAY = "CPUDIST_TEST_VICTIMS", "CPUDIST_TEST_DELAY"
_SAVING_SECONDS = 0.2  # from the begin of a checkpoint to the kill, at most


def main() -> None:
    """Print a line for each moment and a summary; exit with status 1 if a checkpoint was broken or not resumed from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    chance, found, newest = random.Random(options.seed), collections.Counter[str](), 0
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        words = ["asynchronous"] if options.asynchronous else ["trainer", *_WORDS]
        command = jobs.mpirun(2, *jobs.train("--backend", "gloo", __file__, *words, str(output)))
        for moment in range(options.moments):
            victims, delay = chance.choice(["0", "1", "0 1"]), chance.random() * _SAVING_SECONDS
            variables = {"CPUDIST_RUN_ID": "soak", "CPUDIST_RESTART_COUNT": str(moment)}
            result = jobs.run(command, 150, {**variables, _VICTIMS: victims, _DELAY: str(delay)})
            was = re.search("killed while (.*)", result.stdout)
            goes_on = not newest or f"going on from {output}/checkpoint-{newest}\n" in result.stderr
            newest = max(numbered(output), default=0)
            problem = _problem(output) if was and goes_on else f"no checkpoint-{newest}, or no kill\n{result.output}"
            print(f"{moment + 1:3}  ranks {victims}, {was and was[1]}: {problem or f'{newest} is whole'}", flush=True)
            found["broken" if problem else was[1]] += 1
    print(f"\n{options.moments} moments, broken: {found['broken']}", *found.items(), sep="\n")
    sys.exit(found["broken"] > 0)


def _problem(output: Path) -> str:
    """Return what is wrong with the checkpoints; empty if nothing is."""
    checkpoints, saved = numbered(output), output.with_name("saved")
    for step, checkpoint in checkpoints.items():
        damage, said = manifest.damage(checkpoint), manifest.read(checkpoint)
        if damage or said is None or said.step != step:
            return f"{checkpoint.name} is broken: {damage or said}"
    text = saved.read_text() if saved.exists() else ""  # empty while it is written
    return f"step {text} had been saved" if text and int(text) > max(checkpoints) + 1 else ""


def _kill_while_saving(output: Path, delay: float) -> None:
    """Kill this rank so many seconds after its second checkpoint is begun, and say what the ranks were doing."""
    first, incomplete = max(numbered(output), default=0), output / INCOMPLETE
    while max(numbered(output), default=0) == first or not incomplete.is_dir():
        time.sleep(0.001)
    time.sleep(delay)
    left = [path.name for path in incomplete.glob("*") if path.is_dir()]
    deletes = any(name.startswith("old-") for name in left)
    was = "deleting" if deletes else "writing" if left else "before, after or between"
    os.write(1, f"killed while {was}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)


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
    if _VICTIMS not in os.environ:
        main()
    output = Path(sys.argv[-1])
    if os.environ["RANK"] in os.environ[_VICTIMS].split():
        threading.Thread(target=_kill_while_saving, args=(output, float(os.environ[_DELAY])), daemon=True).start()
    if sys.argv.pop(1) == "trainer":
        runpy.run_path(_EXAMPLE, run_name="__main__")
    train(output)
