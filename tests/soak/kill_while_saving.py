"""Kill a training job at random moments of saving a checkpoint, resume it, and print what each moment left behind.

    python tests/soak/kill_while_saving.py [--moments 50] [--seed 0] [--asynchronous]

examples/language_model.py on two ranks saves after every step, keeps two checkpoints, and goes on by itself from the
newest one, as after a restart by `cpudist launch`. Each time rank 0, rank 1 or all processes are killed, at a random
moment of its savings. Then all checkpoints that are there must be readable, and the next job must go on from the newest
of them.

With --asynchronous the ranks run a loop of their own with Checkpoints(asynchronous=True): of the steps whose `save` had
returned, at most the last one may be missing. They are forked from this program, which has imported torch, and have no
job around them: where one is killed, this program kills the other a second later.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

from jobs import mpirun, train

from cpudist import Checkpoints
from cpudist.checkpoints import manifest
from cpudist.waiting import poll

RANKS = 2
_SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "language_model.py")
_START_SECONDS = 120.0
_OTHERS_SECONDS = 1.0  # for the other ranks of a loop to end
_SAVING_SECONDS = 0.2  # the kill comes at most so long after a checkpoint was begun
_MODEL = ["--config_overrides", "n_layer=2,n_embd=256,n_head=4", "--vocab_size", "1024", "--block_size", "16"]
_OPTIONS = ["--max_steps", "100000", "--per_device_train_batch_size", "1", "--save_steps", "1"]
_OPTIONS += ["--save_total_limit", "2", "--logging_steps", "1000", "--disable_tqdm", "true"]


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
        start = _Loop if options.asynchronous else _Example
        for moment in range(options.moments):
            victims = chance.choice(["rank 0", "rank 1", "all"])
            was, problem, newest = _kill_once(start, output, moment, victims, chance.random() * _SAVING_SECONDS, newest)
            print(
                f"{moment + 1:3}  {victims:7} killed, {was:44} {problem or f'checkpoint-{newest} is whole'}", flush=True
            )
            found["broken" if problem else re.sub(r"\d+ files", "some files", was)] += 1
    print(f"\n{options.moments} moments, broken: {found.pop('broken', 0)}")
    for was, count in found.most_common():
        print(f"{count:5}  {was}")
    return 0 if sum(found.values()) == options.moments else 1


class _Example:
    """A job of the example."""

    def __init__(self, output: Path, restart: int) -> None:
        text = str(Path(sysconfig.get_path("stdlib")) / "heapq.py")
        command = mpirun(RANKS, *train(_SCRIPT, "--output_dir", str(output), "--train_files", text, *_MODEL, *_OPTIONS))
        environment = {**os.environ, "CPUDIST_RESTART_COUNT": str(restart), "CPUDIST_RUN_ID": "killed"}
        with _log(output).open("w") as file:
            self._job = subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)

    def ranks(self) -> dict[int, int]:
        """Return the ranks that run, by their process ids."""
        return _ranks()

    def ended(self) -> bool:
        """Return whether none runs."""
        return self._job.poll() is not None

    def wait(self) -> None:
        """Wait until none runs."""
        self._job.wait(_START_SECONDS)


class _Loop:
    """Ranks of a loop of one's own; the methods are those of `_Example`."""

    def __init__(self, output: Path, restart: int) -> None:
        self._ranks = {}
        for rank in range(RANKS):
            process = os.fork()
            if process == 0:
                try:
                    with _log(output).open("a" if rank else "w") as file:
                        os.dup2(file.fileno(), 2)
                    _train(output, rank, output.parent / f"store-{restart}")
                finally:
                    traceback.print_exc()
                    os._exit(1)
            self._ranks[process] = rank

    def ranks(self) -> dict[int, int]:
        return dict(self._ranks)

    def ended(self) -> bool:
        for process in list(self._ranks):
            if os.waitpid(process, os.WNOHANG)[0]:
                del self._ranks[process]
        return not self._ranks

    def wait(self) -> None:
        if not poll(self.ended, _OTHERS_SECONDS):
            _kill(self._ranks)
            poll(self.ended, _START_SECONDS)


def _train(output: Path, rank: int, store: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), RANKS), rank=rank, world_size=RANKS)
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints = Checkpoints(output, asynchronous=True)
    for step in itertools.count(checkpoints.restore(model=model, optimizer=optimizer) + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 512)).square().mean().backward()
        optimizer.step()
        checkpoints.save(step, model=model, optimizer=optimizer)
        if rank == 0:
            _saved(output).write_text(str(step))


def _log(output: Path) -> Path:
    return output.parent / "log"


def _saved(output: Path) -> Path:
    """Return the file with the step whose `save` has returned last."""
    return output.parent / "saved"


def _kill_once(
    start: type[_Example | _Loop], output: Path, restart: int, victims: str, delay: float, newest: int
) -> tuple[str, str, int]:
    """Run one job and kill it `delay` seconds after it has begun its second checkpoint.

    Args:
        start: the job.
        output: folder of the checkpoints.
        restart: how many jobs ran there before.
        victims: `rank 0`, `rank 1` or `all`.
        delay: seconds.
        newest: step of the newest checkpoint, from which the job must go on.

    Returns:
        What the job was doing, what is wrong (empty if nothing), and the step of the newest checkpoint now.
    """
    log = _log(output)
    job = start(output, restart)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not (output / f"checkpoint-{newest + 1}").is_dir():
            if job.ended() or time.monotonic() > deadline:
                return "", f"did not go on from checkpoint-{newest}: {log.read_text()[-2000:]}", newest
            time.sleep(0.005)
        chosen = [pid for pid, rank in job.ranks().items() if victims in ("all", f"rank {rank}")]
        while not (output / ".incomplete").is_dir() and not job.ended():
            time.sleep(0.001)
        time.sleep(delay)
        _kill(chosen)
        was = _doing(output / ".incomplete")
        job.wait()
    finally:
        _kill(job.ranks())
        job.wait()
    if newest and f"going on from {output}/checkpoint-{newest}\n" not in log.read_text():
        return was, f"went on from elsewhere than checkpoint-{newest}", newest
    return was, *_look_at(output)


def _kill(processes: Iterable[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _look_at(output: Path) -> tuple[str, int]:
    """Return what is wrong with the checkpoints (empty if nothing), and the step of the newest one."""
    steps = sorted(int(path.name.removeprefix("checkpoint-")) for path in output.glob("checkpoint-*"))
    for step in steps:
        checkpoint = output / f"checkpoint-{step}"
        try:
            assert not (problem := manifest.damage(checkpoint)), problem
            said = manifest.read(checkpoint)
            assert said is not None
            assert said.step == step
            if not said.trainer:
                continue
            load_file(checkpoint / "model.safetensors")
            for name in ("optimizer.pt", "scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(RANKS))):
                torch.load(checkpoint / name, weights_only=False)
            assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == step
        except Exception as error:  # noqa: BLE001 - any error means a broken checkpoint
            return f"{checkpoint.name} is broken: {error}", steps[-1]
    if not steps:
        return "no checkpoint is left", 0
    text = _saved(output).read_text() if _saved(output).exists() else ""  # empty while it is written
    return f"step {text} had been saved" if text and int(text) > steps[-1] + 1 else "", steps[-1]


def _doing(incomplete: Path) -> str:
    """Return what the job was doing, judged by the files in its folder of incomplete checkpoints."""
    left: list[str] = []
    with contextlib.suppress(FileNotFoundError):  # also while the other rank tidies up
        left = sorted(os.listdir(incomplete))
    deleting = [name for name in left if name.startswith("old-")]
    if deleting:
        return "deleting"
    if left:
        return f"writing: {sum(1 for _ in (incomplete / left[0]).glob('*/*'))} files"
    return "between two savings" if not incomplete.is_dir() else "about to write, or just brought out"


def _ranks() -> dict[int, int]:
    """Return the ranks of the job that this process has started: process id -> rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            mine = f"CPUDIST_KILLED_JOB={os.getpid()}".encode() in variables
            if mine and words[0].endswith(b"python") and words[1].endswith(b"cpudist-train"):
                rank = next(word for word in variables if word.startswith(b"PMI_RANK="))
                found[int(entry.name)] = int(rank.removeprefix(b"PMI_RANK="))
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the job too
    os.environ["CPUDIST_KILLED_JOB"] = str(os.getpid())
    sys.exit(main())
