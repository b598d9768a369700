"""Compare whole jobs: one script of Hugging Face's Trainer on two ranks, started in several ways.

    python benchmarks/whole_jobs.py [--quick] [gpt2] [qa] [mlm] [float32] [bfloat16] [--examples FOLDER]

trainer_script.py trains a model for 8 steps: a GPT-2 with 24 million parameters, 8 x 128 tokens per rank (the default),
or two layers of BERT-large's width, 4 x 384 tokens per rank, 62 % of them padding, that answer questions or predict
words. FOLDER is `examples/pytorch` of transformers: then its run_qa.py or run_mlm.py trains the two layers. run_qa.py
wants `pip install evaluate`, which fetches the metric squad if there is no folder of this name here. torchrun and
accelerate start the script on gloo, mpirun with cpudist on ccl. The jobs take turns.

Prints samples per second in the second half of the steps, when models are compiled, and as multiples of the first
job's; the processor time of a sample in these steps, which other programs on the machine disturb less; the time of a
whole job; and the last loss. A step ends when Trainer prints its loss. The losses must be the same for all jobs without
--use_ipex, which draws other dropout masks; of the masked model Trainer alone reports as many times the loss as there
are ranks (huggingface/transformers#37766).
"""

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from transformers_examples import example
from usage import asked

from cpudist.backends.process_group import CPU_ONLY
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import Timings, ratio
from cpudist.pinning.plan import THREADS, PlanOptions, make_plan
from cpudist.pinning.preload import wanted_allocator
from cpudist.topology.identity import free_port
from cpudist.topology.machine import this_machine

RANKS, ROUNDS, STEPS = 2, 3, 8
SAMPLES = {"gpt2": 8, "qa": 4, "mlm": 4}  # per rank
BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).with_name("trainer_script.py")
DTYPES = {"float32": [], "bfloat16": ["--bf16"]}
ON_GLOO, ON_CCL = ["--use_cpu", "--ddp_backend", "gloo"], ["--no_cuda", "--ddp_backend", "ccl"]
TRIMMED = [*ON_CCL, "--use_ipex", "--trim_padding"]
FLAGS = ["--save_strategy=no", "--report_to=none", "--logging_steps=1", "--disable_tqdm=true", "--seed=0"]
LOGGED = re.compile(r"'(loss|train_runtime|train_samples_per_second)': '?([\d.e+-]+)")
Job = tuple[list[str], list[str], dict[str, str]]  # the words up to the script, its flags, environment variables


class Run(NamedTuple):
    """Seconds and processor seconds of a sample in the second half of the steps, seconds of the job, its last loss."""

    per_sample: float
    processor: float
    whole: float
    loss: float


def jobs(folder: Path, model: str) -> dict[str, Job]:
    """Return all jobs by name. Those on gloo get as many threads as cpudist gives a rank: torchrun does not do that."""
    threads = make_plan(this_machine(), PlanOptions(ranks=RANKS)).ranks[0].omp_threads
    gloo = {THREADS: os.environ.get(THREADS, str(threads)), **CPU_ONLY}
    torchrun = [f"{BIN}/torchrun", "--standalone", f"--nproc-per-node={RANKS}"]
    hostfile = folder / "hosts"  # accelerate starts several ranks on CPUs only with mpirun, for which it wants one
    hostfile.write_text("localhost\n")
    accelerate = [f"{BIN}/accelerate", "launch", "--cpu", f"--mpirun_hostfile={hostfile}", f"--num_processes={RANKS}"]
    accelerate += [
        "--num_machines=1",
        f"--main_process_port={free_port()}",
        "--mixed_precision=no",
        "--dynamo_backend=no",
    ]
    mpirun = ["mpirun", "-n", str(RANKS), f"{BIN}/cpudist-train", "--backend", "ccl"]
    tcmalloc = wanted_allocator(os.environ)
    return {
        "torchrun, gloo": (torchrun, ON_GLOO, gloo),
        **(
            {"torchrun, gloo, tcmalloc": (torchrun, ON_GLOO, {**gloo, "LD_PRELOAD": str(tcmalloc)})} if tcmalloc else {}
        ),
        "accelerate launch --cpu, gloo": (accelerate, ON_GLOO, gloo),
        "mpirun, ccl": (mpirun, ON_CCL, {}),
        "mpirun, ccl, --use_ipex": (mpirun, [*ON_CCL, "--use_ipex"], {}),
        **({"mpirun, ccl, --use_ipex, trimmed": (mpirun, TRIMMED, {})} if model == "mlm" else {}),
        "mpirun, ccl, --use_ipex, compiled": (mpirun, [*ON_CCL, "--use_ipex", "--torch_compile"], {}),
    }


def train(job: Job, script: list[str], samples: int, folder: Path) -> Run:
    """Run `script` as `job` says, with `samples` per rank and step."""
    words, own, variables = job
    command = [*words, *script, f"--per_device_train_batch_size={samples}", f"--output_dir={folder / 'out'}", *own]
    logged: dict[str, list[tuple[float, float, float]]] = {}  # by name: time, processor time, and the value
    begin, lines = time.monotonic(), []
    with subprocess.Popen(
        ["timeout", "600", *command],
        env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_DATASETS_CACHE": str(folder), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for line in process.stdout or ():
            lines.append(line)
            for name, value in LOGGED.findall(line):
                times = [rank.cpu_times() for rank in psutil.Process(process.pid).children(recursive=True)]
                processor = sum(one.user + one.system for one in times)
                logged.setdefault(name, []).append((time.monotonic(), processor, float(value)))
    seconds = time.monotonic() - begin
    if process.returncode or not logged:
        sys.exit(f"{' '.join(command)}\n{''.join(lines)}")
    losses = logged["loss"]
    trained = logged["train_runtime"][0][-1] * logged["train_samples_per_second"][0][-1]
    if round(trained / len(losses)) != RANKS * samples:
        sys.exit(f"{' '.join(command)}\ntrained on {trained / len(losses):.0f} samples a step, without an error")
    half = losses[(len(losses) - 1) // 2 :]
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(half)]
    step, used = (statistics.median(each) / (RANKS * samples) for each in zip(*steps, strict=True))
    return Run(step, used, seconds, losses[-1][-1])


def main() -> None:
    """Run all jobs, one after the other in every round, and print a table for each number format."""
    words = asked(__doc__)
    quick = "--quick" in words
    examples = Path(words[words.index("--examples") + 1]) if "--examples" in words else None
    steps, rounds = (3, 1) if quick else (STEPS, ROUNDS)
    models = [word for word in words if word in SAMPLES] or ["gpt2"]
    dtypes = [word for word in words if word in DTYPES] or list(DTYPES)[: 1 if quick else None]
    with tempfile.TemporaryDirectory() as name:
        for model in models:
            script = example(examples, model, Path(name)) if examples else [str(SCRIPT), model]
            offered = list(jobs(Path(name), model).items())[: -1 if quick else None]  # compiling takes long
            for dtype in dtypes:
                flags = [*script, *FLAGS, f"--max_steps={steps}", *DTYPES[dtype]]
                ran: dict[str, list[Run]] = {}
                for number in range(rounds):
                    for job, how in offered:
                        print(f"round {number + 1} of {rounds}: {model}, {job}, {dtype}", file=sys.stderr, flush=True)
                        ran.setdefault(job, []).append(train(how, flags, 1 if quick else SAMPLES[model], Path(name)))
                print(report(f"{model}, {dtype}", ran), end="\n\n", flush=True)


def report(title: str, ran: dict[str, list[Run]]) -> str:
    """Return a table of the jobs; the first is the one that the others are compared with."""
    rows, first = [], None
    for job, found in ran.items():
        per_sample, processor, whole = (Timings(tuple((one[index],) for one in found)) for index in range(3))
        first = first or per_sample
        speed = ratio_cell(ratio(first, per_sample))
        cells = map(time_cell, (processor, whole))
        rows.append([job, f"{1 / per_sample.median:.3g}", speed, *cells, f"{found[0].loss:.4g}"])
    return table([title, "samples/s", "times the first", "processor time a sample", "whole job", "loss"], rows)


if __name__ == "__main__":
    main()
