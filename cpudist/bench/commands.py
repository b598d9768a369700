"""The commands with which `cpudist bench jobs` starts one script of Trainer, and running one of them to its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cpudist import processes, waiting
from cpudist.backends.process_group import CPU_ONLY
from cpudist.console import one_line
from cpudist.pinning.preload import wanted_allocator
from cpudist.topology.identity import free_port
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import PlanOptions, make_plan
from cpudist.topology.thread_variables import THREADS

RANKS = 2

_MARK = "CPUDIST_BENCH_JOB"
_END_SECONDS = 10.0  # for killed processes to be gone
_ERRORS = ("Error:", "Exception:", "error:", "cpudist: ", "cpudist-train: ")
_REASON_CHARACTERS = 200


@dataclass(frozen=True)
class Command:
    """One way to start the script.

    Attributes:
        name: in tables.
        words: the command, up to the script.
        flags: what the script gets besides the flags of all commands.
        variables: added to the environment.
        missing: why it cannot be used here; empty where it can.
        varies: whether it is a variation of the command before it, which a smoke test leaves out.
    """

    name: str
    words: tuple[str, ...]
    flags: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    varies: bool = False


@dataclass(frozen=True)
class Completed:
    """How a job ended: its exit status, None past its time limit; what it wrote; its whole time in seconds."""

    status: int | None
    output: str
    seconds: float

    def reason(self) -> str:
        """Return why it failed, in one line: the first line of its output that names an error, or the last one."""
        if self.status is None:
            return f"did not end within {self.seconds:.0f} s"
        lines = [one_line(line) for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if any(words in line for words in _ERRORS)] or lines[-1:]
        return f"exit status {self.status}: {errors[0] if errors else 'it wrote nothing'}"[:_REASON_CHARACTERS]


def find(folder: Path) -> list[Command]:
    """Return all commands; the first one is what the others are compared with. `folder` is for files that they need.

    Those on gloo get as many threads as cpudist would give a rank, which torchrun by itself does not do.
    """
    threads = make_plan(this_machine(), PlanOptions(ranks=RANKS)).ranks[0].omp_threads
    gloo = {THREADS: os.environ.get(THREADS, str(threads)), **CPU_ONLY}
    on_gloo, on_ccl = ("--use_cpu", "--ddp_backend", "gloo"), ("--no_cuda", "--ddp_backend", "ccl")
    torchrun = (_beside_python("torchrun"), "--standalone", "--nproc-per-node", str(RANKS))
    mpirun = ("mpirun", "-n", str(RANKS), _beside_python("cpudist-train"), "--backend", "ccl")
    without_mpi = "" if shutil.which("mpirun") else "there is no mpirun on PATH"
    tcmalloc = wanted_allocator(os.environ)
    return [
        Command("torchrun, gloo", torchrun, on_gloo, gloo),
        Command(
            "torchrun, gloo, tcmalloc",
            torchrun,
            on_gloo,
            {**gloo, "LD_PRELOAD": str(tcmalloc)},
            "" if tcmalloc else "tcmalloc is not installed, or the environment sets an allocator",
            varies=True,
        ),
        Command("accelerate launch --cpu, gloo", _accelerate(folder), on_gloo, gloo, without_mpi),
        Command("mpirun, ccl", mpirun, on_ccl, missing=without_mpi),
        Command("mpirun, ccl, --use_ipex", mpirun, (*on_ccl, "--use_ipex"), missing=without_mpi, varies=True),
    ]


def run(words: Sequence[str], variables: Mapping[str, str], timeout: float) -> Completed:
    """Run a command with exactly these environment variables, for `timeout` seconds at most.

    Every process that it has started is killed at its end. A launcher's helpers leave its session, so a variable in the
    environment identifies them.

    Raises:
        OSError: it cannot be started.
    """
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        begin = time.monotonic()
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**variables, _MARK: mark},
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            seconds = time.monotonic() - begin
            waiting.poll(lambda: not processes.kill_all_with(_MARK, mark) and process.poll() is not None, _END_SECONDS)
        output.seek(0)
        return Completed(status, output.read(), seconds)


def _accelerate(folder: Path) -> tuple[str, ...]:
    """Return accelerate's command: on CPUs it starts several ranks only with mpirun, for which it wants a hostfile."""
    hostfile = folder / "hosts"
    hostfile.write_text("localhost\n", encoding="utf-8")
    return (
        *(_beside_python("accelerate"), "launch", "--cpu", "--mpirun_hostfile", str(hostfile)),
        *("--num_processes", str(RANKS), "--num_machines", "1", "--main_process_port", str(free_port())),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    )


def _beside_python(program: str) -> str:
    return str(Path(sys.executable).with_name(program))
