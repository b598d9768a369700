"""examples/slurm under a real slurmd of this machine."""

import os
import shutil
import subprocess
from pathlib import Path

import jobs
import pytest
from slurm_node import slurm_node

from cpudist.waiting import poll

pytestmark = pytest.mark.job

ROOT = Path(__file__).parents[2]
TRAIN, PREEMPTED = (ROOT / "examples" / "slurm" / f"{name}.sbatch" for name in ("train", "preempted"))
ONE_NODE = ("--nodes=1", "--cpus-per-task=1")


@pytest.mark.parametrize("script", [TRAIN, PREEMPTED])
def test_cpus_per_task_are_cores(script: Path, tmp_path: Path) -> None:
    """A node with two hardware threads a core gives two ranks 12 cores each, and refuses 13 of 24."""
    with slurm_node(tmp_path, "CPUs=48 Sockets=2 CoresPerSocket=12 ThreadsPerCore=2") as variables:

        def submit(cores: int) -> subprocess.CompletedProcess[str]:
            words = ["sbatch", "--test-only", "--nodes=1", f"--cpus-per-task={cores}", str(script)]
            return subprocess.run(words, capture_output=True, text=True, timeout=30, env=variables)

        assert "Requested node configuration is not available" in submit(13).stderr
        assert submit(12).returncode == 0


@pytest.mark.long
def test_jobs_train_and_one_is_preempted_and_goes_on(tmp_path: Path) -> None:
    """A job of a higher tier preempts it. Later its time limit is near, and it may not be requeued any more."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the scripts run in a checkout
    once = tmp_path / "once.sbatch"
    once.write_text(PREEMPTED.read_text().replace("most_restarts=10", "most_restarts=1"))
    with slurm_node(tmp_path / "slurm") as variables:
        env = jobs.environment({**variables, "PATH": f"{jobs.BIN}{os.pathsep}{variables['PATH']}"})

        def run(*command: str | Path) -> str:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout.strip()

        run("sbatch", "--wait", *ONE_NODE, TRAIN, "--max_steps=3")
        assert (tmp_path / "out" / "checkpoint-3" / "rng_state_1.pth").exists()  # of the second rank
        shutil.rmtree(tmp_path / "out")

        endless = ("--max_steps=1000000", "--logging_steps=1", "--save_strategy=no", "--disable_tqdm=true")
        job = run("sbatch", "--parsable", *ONE_NODE, once, *endless)
        output = tmp_path / f"cpudist-{job}.out"

        def said(words: str, seconds: float = 150) -> bool:
            return poll(lambda: output.exists() and words in output.read_text(), seconds)

        def state() -> str:
            return run("squeue", "--noheader", "--states", "all", "--jobs", job, "--format", "%T %r")

        try:
            assert said("'loss'"), output.read_text()
            run("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
            assert said("SIGTERM: saved out/checkpoint-"), output.read_text()
            # Slurm waits two minutes by itself, and does not start a job in the second in which it has killed it.
            assert poll(lambda: state() == "PENDING BeginTime", 90), state()
            run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
            assert poll(lambda: state() == "RUNNING None", 60), state()
            assert " Restarts=1 " in run("scontrol", "show", "job", job)
            assert said("restart 1: going on from out/checkpoint-"), output.read_text()
            first = output.read_text().count("'loss'")
            assert poll(lambda: output.read_text().count("'loss'") > first, 150)
            run("scancel", "--signal=USR1", job)  # as Slurm sends it for --signal
            assert said("SIGUSR1: saved out/checkpoint-"), output.read_text()
            assert poll(lambda: state() == "FAILED NonZeroExitCode", 30), state()
        finally:
            run("scancel", job)
