"""The batch script: its content, and a job that Slurm preempts and starts again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import jobs
import pytest
from slurm_node import slurm_node

from cpudist.waiting import poll

Text = Callable[..., str]


def directives(script: str) -> dict[str, str]:
    """The options of sbatch."""
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_what_was_asked_for_is_there(text: Text) -> None:
    words = ["--name", "digits", "--nodes", "4", "--ranks-per-node", "2", "--cpus-per-rank", "16", "--memory", "64Gi"]
    words += ["--time", "1-02:00:00", "--signal-before", "300", "--partition", "cpu", "--account", "team"]
    script = text("slurm", *words, "--mpi", "pmi2", "--container", "my image.sif", "--env", "HF_HOME=/data/h f")
    assert directives(script) == {
        "job-name": "digits",
        "partition": "cpu",
        "account": "team",
        "nodes": "4",
        "ntasks-per-node": "2",
        "cpus-per-task": "16",
        "hint": "nomultithread",
        "mem": "65536M",
        "time": "26:00:00",
        "signal": "USR1@300",
        "requeue": "",
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    lines = script.splitlines()
    token, *exports = [line for line in lines if line.startswith("export")]
    assert token.startswith("export CPUDIST_TOKEN=")
    assert "/dev/urandom" in token
    assert exports == ["export HF_HOME='/data/h f'"]
    (srun,) = (line for line in lines if line.startswith("srun"))
    inside = "apptainer exec --bind \"$PWD\" 'my image.sif' cpudist-train --checkpoint-on-signal images"
    assert srun.startswith(f"srun --mpi=pmi2 --cpus-per-task=16 {inside} ")


def test_ranks_by_socket(text: Text) -> None:
    found = directives(text("slurm", "--nodes", "2", "--ranks-per-socket", "2", "--sockets-per-node", "4"))
    assert (found["ntasks"], found["sockets-per-node"], found["ntasks-per-socket"]) == ("16", "4", "2")
    assert "ntasks-per-node" not in found


@pytest.mark.job
def test_words_reach_the_ranks_as_they_are(text: Text, tmp_path: Path) -> None:
    """Through a shell, with a program named srun that prints its arguments."""
    words = ("a b", "$HOME", "*", "'", '"', "`id`", "\\")
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    script = text("slurm", target=("--", "train.py", *words))
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(words) - 1 :] == ["train.py", *words]


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["--ranks-per-node", "2", "--ranks-per-socket", "1"], "--ranks-per-node and --ranks-per-socket"),
        (["--sockets-per-node", "4"], "--sockets-per-node: only"),
        (["--time", "00:02:00", "--signal-before", "120"], "--signal-before 120: must be less"),
        *((["--time", value], f"--time {value!r}") for value in ("60", "1:00", "00:00:59", "00:60:00")),
        (["--mpi", "openmpi"], "--mpi 'openmpi'"),
        (["--name", "a b"], "--name 'a b'"),
        (["--partition", "a b"], "--partition 'a b'"),
    ],
)
def test_mistakes(refused: Callable[..., list[str]], words: list[str], start: str) -> None:
    (line,) = refused("slurm", *words)
    assert line.startswith(f"cpudist: {start}")


@pytest.mark.job
def test_cpus_per_rank_are_cores(text: Text, tmp_path: Path) -> None:
    """On a node with two hardware threads a core, Slurm gives two ranks 12 cores each, and refuses 13 of 24."""
    with slurm_node(tmp_path, "CPUs=48 Sockets=2 CoresPerSocket=12 ThreadsPerCore=2") as variables:

        def submit(cores: str) -> subprocess.CompletedProcess[str]:
            script = text("slurm", "--ranks-per-socket", "1", "--cpus-per-rank", cores)
            words = ["sbatch", "--output", "/dev/null"]
            return subprocess.run(words, input=script, capture_output=True, text=True, timeout=30, env=variables)

        assert "Requested node configuration is not available" in submit("13").stderr
        assert submit("12").returncode == 0


@pytest.mark.job
@pytest.mark.long
def test_a_job_is_preempted_and_goes_on(text: Text, tmp_path: Path) -> None:
    """A job of a higher tier preempts it. Later its time limit is near, and it may not be requeued any more.

    Slurm, which is told no more of this machine, takes each of its CPUs for a socket.
    """
    learn = ("--", "--backend", "ccl", "images", "--dataset_name", "digits", "--output_dir", "out", "--do_train")
    quiet = ("--max_steps", "1000000", "--logging_steps", "1", "--save_strategy", "no", "--disable_tqdm", "true")
    words = ["--name", "digits", "--ranks-per-socket", "1", "--cpus-per-rank", "1", "--max-restarts", "1"]
    (tmp_path / "job.sh").write_text(text("slurm", *words, target=(*learn, *quiet)))
    (tmp_path / "slurm").mkdir()
    with slurm_node(tmp_path / "slurm") as variables:
        env = jobs.environment({**variables, "PATH": f"{jobs.BIN}{os.pathsep}{variables['PATH']}"})

        def run(*command: str) -> str:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        job = run("sbatch", "--parsable", "job.sh")
        output = tmp_path / f"digits-{job}.out"

        def said(words: str, seconds: float = 150) -> bool:
            return poll(lambda: output.exists() and words in output.read_text(), seconds)

        def state() -> str:
            return run("squeue", "--noheader", "--states", "all", "--jobs", job, "--format", "%T %r")

        try:
            assert said("'loss'"), output.read_text()
            run("sbatch", "--partition", "urgent", "--exclusive", "--output", "/dev/null", "--wrap", "true")
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
            assert json.loads((tmp_path / "out" / "cpudist.json").read_text())["world_size"] == 2
        finally:
            run("scancel", job)
