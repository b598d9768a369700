"""Jobs of two ranks that run loops as users write them, with a fault of rank 1 (supervision/checks/loops.py).

docs/reliability.md promises how each one ends. supervision/test_uses.py tries a quarter of them, scripts/faults.sh all.
"""

import math
import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import jobs
from bed import Bed
from mpis import mpirun_on

from cpudist.waiting import poll

LOOPS = Path(__file__).parents[1] / "supervision" / "checks" / "loops.py"
USES = ("ddp", "plain", "trainer", "accelerate", "fsdp", "calls")
# The backend and CPUDIST_TRANSPORT. With "hosts" (mpirun) and "torchrun" each rank has a host of its own.
WAYS = {
    "memory": ("ccl", ""),
    "gloo": ("gloo", ""),
    "oneccl": ("ccl", "oneccl"),
    "mpi": ("ccl", "mpi-alone"),
    "hosts": ("ccl", ""),
    "torchrun": ("gloo", ""),
}
_END_SECONDS = 300.0  # from the start, on a busy machine


@dataclass(frozen=True)
class Promise:
    """How a job ends.

    Attributes:
        says: what a line of cpudist says, a regular expression.
        seconds: from the fault until the launcher has returned and no process is left.
        fails: whether its exit status is not 0.
        timeout: its `--timeout`.
    """

    says: str
    seconds: float = 8.0
    fails: bool = True
    timeout: float = 60.0


_ENDED = r"rank 1 \(\S+\) never reached \w+ #.*; it was at the end of its script"
FAULTS = {
    "none": Promise("completed after", fails=False),
    "late": Promise(
        r"waiting for 1\d s of 60: rank 1 \(\S+\) never reached \w+ #.*; it was last in loops\.py:",
        math.inf,
        fails=False,
    ),
    "early": Promise(rf"{_ENDED}, last in \w+\.py:\d+; ending the job"),
    "exit": Promise(f"{_ENDED}.*; ending the job"),
    "raise": Promise("rank 1 on .* failed: ValueError: a bad batch; ending the job"),
    "exit3": Promise("rank 1 on .* failed: exit status 3; ending the job"),
    "abort": Promise("rank 1 on .* failed: exit status 3; ending the job"),
    "kill": Promise(r"rank 1 on \S+ (ended without an error message|was killed by SIGKILL)"),
    "stop": Promise(r"rank 1 \(\S+\) does not answer: stopped", 27.0, timeout=15.0),
    "lost": Promise("rank 1 on h1 cannot be reached any more", 45.0),
}
_INNOCENT = re.compile(r"rank 0\b.* (ended without|does not answer|was killed|failed|never reached)")


def has(way: str, fault: str) -> bool:
    """Return whether this fault is tried over this way: hosts are lost where there are several."""
    return fault == "lost" if way == "torchrun" else fault != "lost" or way == "hosts"


@dataclass(frozen=True)
class Ending:
    """How a job ended; see `Promise`."""

    status: int | None
    seconds: float
    output: str

    def shortcomings(self, fault: str) -> list[str]:
        """Return what differs from what is promised."""
        promise, said = FAULTS[fault], re.findall("^cpudist: .*\n", self.output, re.MULTILINE)
        times = sum(bool(re.search(promise.says, line)) for line in said)
        checks = {
            f"status {self.status}": (self.status != 0) == promise.fails,
            f"{self.seconds:.0f} s": self.seconds <= promise.seconds,
            "not trained": promise.fails or "\ntrained\n" in self.output,
            f"said {times} times": times == 1 or (times > 1 and promise.seconds > 10 and promise.fails),
            "rank 0 is named": not any(map(_INNOCENT.search, said)),
            "a false alarm": fault != "none" or not re.search("warning|rank", jobs.Result(0, "", "".join(said)).report),
            # After a timeout the rank that has waited shows its error, too.
            "tracebacks": fault in ("stop", "lost") or self.output.count("Traceback (") == (fault == "raise"),
            "a frame of cpudist": "cpudist/cli" not in self.output,
        }
        return [name for name, is_right in checks.items() if not is_right]


def run(use: str, fault: str, way: str) -> Ending:
    """Run a job to its end; an AssertionError says that it did not end, or left processes behind."""
    backend, transport = WAYS[way]
    train = ["--backend", backend, "--timeout", f"{FAULTS[fault].timeout:g}", str(LOOPS), use, fault]
    with tempfile.TemporaryDirectory() as folder:
        if way in ("hosts", "torchrun"):
            return _on_hosts(way, jobs.train(*train), fault, Path(folder))
        env = {"CPUDIST_TRANSPORT": transport} if transport else {}
        result = jobs.run(jobs.mpirun(2, *jobs.train(*train)), _END_SECONDS, env, folder)
        return _ending(result.returncode, f"{result.stderr}\n{result.stdout}", time.time())


def _on_hosts(way: str, train: list[str], fault: str, folder: Path) -> Ending:
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--master-addr=h0", "--no-python"]
    logs, over = [folder / "output.log", folder / "h1.log"], threading.Event()

    def output() -> str:
        return "\n".join(log.read_text() for log in logs if log.exists())

    def take_down() -> None:
        poll(lambda: over.is_set() or "fault at" in output(), _END_SECONDS)
        if fault == "lost" and not over.is_set():
            bed.kill("h1")

    with Bed(folder) as bed:
        command = [*mpirun_on(bed, "intel", 1), *train]
        if way == "torchrun":
            command = [*agent, "--node-rank=0", *train]
            bed.start("h1", [*agent, "--node-rank=1", *train], logs[1], cwd=folder)
        striker = threading.Thread(target=take_down)
        striker.start()
        ended = bed.watch("h0", command, _END_SECONDS)
        over.set()
        striker.join()
        assert ended.returncode is not None, ended
        assert not ended.left, ended
        return _ending(ended.returncode, output(), time.time() - (time.monotonic() - ended.at))


def _ending(status: int | None, output: str, at: float) -> Ending:
    begun = re.search(r"fault at ([\d.]+)", output)
    return Ending(status, at - float(begun[1]) if begun else 0.0, output)
