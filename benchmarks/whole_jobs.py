"""Compare whole jobs: one script of Hugging Face's Trainer on two ranks, started in several ways.

    python benchmarks/whole_jobs.py [--quick] [gpt2] [qa] [mlm]

trainer_script.py trains a model for 8 steps: a GPT-2 with 24 million parameters, 8 x 128 tokens per rank (the default),
or two layers of BERT-large's width, 4 x 384 tokens per rank, 62 % of them padding, that answer questions or predict
words. torchrun and accelerate start it on gloo, mpirun with cpudist on ccl. The jobs take turns. Prints samples per
second in the second half of the steps, when models are compiled, and as multiples of the first job's; the time of a
whole job; and the last loss. It must be the same for all jobs without --use_ipex, which draws other dropout masks;
of the masked model Trainer alone reports as many times the loss as there are ranks (huggingface/transformers#37766).
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
Job = tuple[list[str], list[str], dict[str, str]]  # the words up to the script, its flags, environment variables


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


def train(job: Job, model: str, flags: list[str], samples: int, folder: Path) -> tuple[float, float, float]:
    """Run a job; return its seconds per sample, its whole time in seconds, and its last loss."""
    words, own, variables = job
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [*words, str(SCRIPT), model, str(result), "--output_dir", str(folder / "out"), *FLAGS, *flags, *own]
    begin = time.monotonic()
    with (folder / "log").open("w+") as log:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=600)
        log.seek(0)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{log.read()}")
    seconds, said = time.monotonic() - begin, json.loads(result.read_text())
    if said["ranks"] != RANKS:
        sys.exit(f"{' '.join(command)}\ntrained on {said['ranks']} rank, without an error")
    return said["step_seconds"] / (RANKS * samples), seconds, said["losses"][-1]


def main() -> None:
    """Run all jobs, one after the other in every round, and print a table for each number format."""
    words = asked(__doc__)
    quick = "--quick" in words
    steps, rounds = (3, 1) if quick else (STEPS, ROUNDS)
    with tempfile.TemporaryDirectory() as name:
        for model, dtype in itertools.product([word for word in words if word in SAMPLES] or ["gpt2"], DTYPES):
            if quick and dtype != "float32":
                continue
            samples = 1 if quick else SAMPLES[model]
            flags = [f"--max_steps={steps}", f"--per_device_train_batch_size={samples}", *DTYPES[dtype]]
            ran: dict[str, list[tuple[float, float, float]]] = {}
            for number in range(rounds):
                for job, how in list(jobs(Path(name), model).items())[: -1 if quick else None]:  # compiling takes long
                    print(f"round {number + 1} of {rounds}: {model}, {job}, {dtype}", file=sys.stderr, flush=True)
                    ran.setdefault(job, []).append(train(how, model, flags, samples, Path(name)))
            rows, first = [], None
            for job, found in ran.items():
                per_sample, whole = (Timings(tuple((one[index],) for one in found)) for index in (0, 1))
                first = first or per_sample
                speed = f"{1 / per_sample.median:.3g}"
                rows.append([job, speed, ratio_cell(ratio(first, per_sample)), time_cell(whole), f"{found[0][2]:.4f}"])
            print(
                table([f"{model}, {dtype}", "samples/s", "times the first", "whole job", "loss"], rows),
                end="\n\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
