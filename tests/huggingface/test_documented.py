"""The commands that guides print: a plain script starts its job."""

import json
import sys
from pathlib import Path

import pytest
from course import BOUND, CHECKS
from jobs import BIN, completed, mpirun, run, torchrun

pytestmark = pytest.mark.job

# What Intel's guide exports before the command; it sets the number of threads for its own machines.
EXPORTED = {"MASTER_ADDR": "127.0.0.1", "CCL_WORKER_COUNT": "1"}

# accelerate runs torchrun's agent, or mpirun.
ACCELERATE = [str(BIN / "accelerate"), "launch", "--num_processes", "2", "--num_machines", "1"]
ACCELERATE += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
LAUNCHERS = {
    "accelerate": [*ACCELERATE, "--multi_gpu"],
    "accelerate-mpirun": [*ACCELERATE, "--cpu", "--mpirun_hostfile", "HOSTS"],
}


@pytest.mark.versions
def test_the_documented_command_as_printed(tmp_path: Path) -> None:
    words = ["--output_dir", str(tmp_path), "--max_steps", "20", "--per_device_train_batch_size", "10"]
    words += ["--learning_rate", "1e-2", "--save_strategy", "no"]
    words += ["--no_cuda", "--ddp_backend", "ccl", "--use_ipex", "--bf16"]
    command = mpirun(2, "-genv", "OMP_NUM_THREADS=1", sys.executable, str(CHECKS / "course.py"), *words)
    result = completed(command, BOUND, EXPORTED)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["backend"], found["wrapped"]) == ("ccl", "DistributedDataParallel")
    assert (found["threads"], found["told"], found["timeout"]) == (1, "1", 300)
    assert found["losses"][-1] < 0.8 * found["losses"][0]
    assert result.stderr.count("cpudist: optimize: ") == 1, result.output
    record = json.loads((tmp_path / "cpudist.json").read_text())  # in the output folder, without --record
    assert (record["exit"], record["world_size"], record["backend"], record["steps"]) == ("completed", 2, "ccl", 20)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_arguments_from_files_and_code_and_a_rank_that_fails(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "hosts").write_text("localhost\n")
    flags = {"output_dir": str(tmp_path), "ddp_backend": "ccl", "use_ipex": True, "no_cuda": True, "extra": 4}
    (tmp_path / "flags.json").write_text(json.dumps(flags))
    command = [str(tmp_path / "hosts") if word == "HOSTS" else word for word in LAUNCHERS[launcher]]
    result = run([*command, str(CHECKS / "plain.py"), str(tmp_path), "starts"], timeout=BOUND)
    assert result.returncode == 1, result.output
    assert result.stdout == "true\ntrue\n", result.output
    assert result.stderr.count("RuntimeError: rank 1 has had enough\n") == 1, result.output
    assert "failed: RuntimeError: rank 1 has had enough; ending the job\n" in result.stderr, result.output
    assert json.loads((tmp_path / "cpudist.json").read_text())["exit"] == "failed"


def test_arguments_that_do_not_ask_for_ccl_change_nothing(tmp_path: Path) -> None:
    # Without a job of cpudist, accelerate prefers torch_xla where it is installed.
    variables = {"USE_TORCH_XLA": "0"}
    result = completed(torchrun(2, str(CHECKS / "plain.py"), str(tmp_path), "inert"), BOUND, variables)
    assert result.stdout.count("no job on gloo") == 2, result.output


ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "LOCAL_RANK": "0"}
ACCELERATE_ON_CPUS = [str(BIN / "accelerate"), "launch", "--cpu", "--num_processes", "2"]


@pytest.mark.parametrize(
    ("command", "check", "variables", "line"),
    [
        (mpirun(2, sys.executable), "refused", {}, "--use_ipex without a job of cpudist: add --ddp_backend ccl, or "),
        ([sys.executable], "starts", ONE_RANK, "the launcher's variables give a local rank but no local size: "),
        # accelerate would silently start one process. Here a file asks for ccl; a command line has the same effect.
        (ACCELERATE_ON_CPUS, "starts", {}, "accelerate launch starts one process, not 2, without --mpirun_hostfile; "),
    ],
    ids=["no job", "a wrong launcher", "accelerate on CPUs without a hostfile"],
)
def test_what_is_refused(tmp_path: Path, command: list[str], check: str, variables: dict[str, str], line: str) -> None:
    (tmp_path / "flags.json").write_text(json.dumps({"output_dir": str(tmp_path), "ddp_backend": "ccl"}))
    result = run([*command, str(CHECKS / "plain.py"), str(tmp_path), check], timeout=BOUND, env=variables)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr, result.output
    (said,) = (text for text in result.stderr.splitlines() if text.startswith("cpudist"))
    assert said.startswith(f"cpudist: {line}"), result.output


def test_a_guides_setup_lines(tmp_path: Path) -> None:
    find = 'path=$(python -c "import torch; import torch_ccl; import os;  '
    find += 'print(os.path.abspath(os.path.dirname(torch_ccl.__file__)))")'
    source = "env | sort > before; source $path/env/setvars.sh; env | sort > after; cmp before after; echo $path"
    result = completed(["bash", "-c", f"set -e; {find}; {source}"], timeout=60, cwd=tmp_path)
    assert result.stdout.endswith("/cpudist/backends/ccl\n"), result.output
