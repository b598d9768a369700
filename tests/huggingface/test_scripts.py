"""Scripts that know nothing of cpudist run on its process group, by the commands that guides print."""

import json
import sys
from pathlib import Path

import pytest
import torch
from course import BOUND, CHECKS, trained
from jobs import BIN, completed, mpirun, run, torchrun, train

from cpudist.optimization import ipex

pytestmark = pytest.mark.job

_WORDS = ["--no_cuda", "--ddp_backend", "ccl", "--use_ipex", "--bf16", "--lr_scheduler_type", "constant"]

# accelerate runs torchrun's agent, or mpirun.
ACCELERATE = [str(BIN / "accelerate"), "launch", "--num_processes", "2"]
PLAIN = [*ACCELERATE, "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
LAUNCHERS = {
    "accelerate": [*PLAIN, "--multi_gpu"],
    "accelerate-mpirun": [*PLAIN, "--cpu", "--mpirun_hostfile", "hosts"],
}


@pytest.mark.versions
def test_the_documented_command_trains_and_saves_what_was_trained(tmp_path: Path) -> None:
    """accelerate's move to cpu:0 would corrupt prepacked weights without an error, and the model would not learn."""
    words = [*_WORDS, "--output_dir", str(tmp_path), "--max_steps", "150", "--per_device_train_batch_size", "10"]
    words += ["--learning_rate", "5e-3", "--save_strategy", "no"]
    command = mpirun(2, "-genv", "OMP_NUM_THREADS=1", sys.executable, str(CHECKS / "course.py"), *words)
    # What Intel's guide exports before the command; it sets the number of threads for its own machines.
    result = completed(command, BOUND, {"MASTER_ADDR": "127.0.0.1", "CCL_WORKER_COUNT": "1"})
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["backend"], found["wrapped"]) == ("ccl", "DistributedDataParallel")
    assert (found["threads"], found["told"], found["timeout"]) == (1, "1", 300)
    assert found["losses"][-1] < 0.02, "learnt by heart"
    assert result.stderr.count("cpudist: optimize: ") == 1, result.output
    record = json.loads((tmp_path / "cpudist.json").read_text())  # in the output folder, without --record
    assert (record["exit"], record["world_size"], record["backend"], record["steps"]) == ("completed", 2, "ccl", 150)
    assert record["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    assert "parallel dropout" in record["optimizations"]

    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float32)
    assert model.config.dtype in (torch.float32, "float32"), "as any other run saves it"
    reloaded = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    assert reloaded == found["parameters"]


@pytest.mark.versions
def test_flags_from_command_line_files_dictionaries_and_code(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    script = [str(CHECKS / "arguments.py"), str(tmp_path), "every_way"]
    result = completed(mpirun(2, *train("--backend", "ccl", "--record", str(record), *script)), BOUND)
    assert result.stdout.splitlines()[-1] == "DistributedDataParallel ccl 2 cpu False", result.output

    fields = json.loads(record.read_text())
    assert (fields["steps"], fields["dtype"], fields["exit"]) == (20, "bfloat16", "completed")
    assert fields["loss"]["last"] < fields["loss"]["first"]
    assert "parallel dropout" not in fields["optimizations"], "the flags leave PyTorch's"
    lines = [line for line in result.stderr.splitlines() if "cpudist: optimize: " in line]
    assert len(lines) == 1, result.output
    if ipex.missing():
        assert "warning: --use_ipex: " + ipex.missing() + "; going on with native" in lines[0]


@pytest.mark.versions
def test_saves_beside_steps_loads_the_best_and_resumes(tmp_path: Path) -> None:
    """With a learning rate that ends badly, the last model is not the best."""
    words = [*_WORDS, "--per_device_train_batch_size", "6", "--max_steps", "40", "--learning_rate", "1e-1"]
    words += ["--save_strategy", "steps", "--save_steps", "10", "--eval_strategy", "steps", "--eval_steps", "10"]
    words += ["--load_best_model_at_end", "--metric_for_best_model", "loss"]
    slow = ["watched.py", "beside", "--dropout"]
    whole = trained(2, tmp_path / "whole", slow, *words, options=("--async-checkpoint",))
    # Evaluated again after training, then with all parameters in float32.
    assert whole["metrics"]["eval_loss"] == pytest.approx(whole["best"], rel=2e-2)
    assert whole["checkpoint"].startswith(str(tmp_path / "whole" / "checkpoint-"))

    words += ["--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-20")]
    resumed = trained(2, tmp_path / "resumed", ["course.py", "--dropout"], *words)
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-5), "the first twenty come from the checkpoint"
    assert resumed["parameters"] == pytest.approx(whole["parameters"], abs=1e-5)
    assert not resumed["torch_xla"], "a job on CPUs does not import it"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_arguments_from_files_and_code_and_a_rank_that_fails(tmp_path: Path, launcher: str) -> None:
    (tmp_path / "hosts").write_text("localhost\n")
    flags = {"output_dir": str(tmp_path), "ddp_backend": "ccl", "use_ipex": True, "no_cuda": True, "extra": 4}
    (tmp_path / "flags.json").write_text(json.dumps(flags))
    command = [*LAUNCHERS[launcher], str(CHECKS / "arguments.py"), str(tmp_path), "starts"]
    result = run(command, timeout=BOUND, cwd=tmp_path)
    assert result.returncode == 1, result.output
    assert result.stdout == "true\ntrue\n", result.output
    assert result.stderr.count("RuntimeError: rank 1 has had enough\n") == 1, result.output
    assert "failed: RuntimeError: rank 1 has had enough; ending the job\n" in result.stderr, result.output
    assert json.loads((tmp_path / "cpudist.json").read_text())["exit"] == "failed"


def test_arguments_that_do_not_ask_for_ccl_change_nothing(tmp_path: Path) -> None:
    # Without a job of cpudist, accelerate prefers torch_xla where it is installed.
    variables = {"USE_TORCH_XLA": "0"}
    result = completed(torchrun(2, str(CHECKS / "arguments.py"), str(tmp_path), "inert"), BOUND, variables)
    assert result.stdout.count("no job on gloo") == 2, result.output


ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("command", "check", "variables", "line"),
    [
        (mpirun(2, sys.executable), "refused", {}, "--use_ipex needs a job of cpudist: add --ddp_backend ccl, or "),
        ([sys.executable], "starts", ONE_RANK, "the launcher's variables give a local rank but no local size: "),
    ],
    ids=["no job", "a wrong launcher"],
)
def test_what_is_refused(tmp_path: Path, command: list[str], check: str, variables: dict[str, str], line: str) -> None:
    (tmp_path / "flags.json").write_text(json.dumps({"output_dir": str(tmp_path), "ddp_backend": "ccl"}))
    result = run([*command, str(CHECKS / "arguments.py"), str(tmp_path), check], timeout=BOUND, env=variables)
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


@pytest.mark.versions
def test_scripts_with_accelerate_alone() -> None:
    """Also those that accelerate tests itself with, in the same job."""
    modules = [f"accelerate.test_utils.scripts.{name}" for name in ("test_script", "test_ops", "test_sync")]
    result = completed(mpirun(2, *train("--backend", "ccl", str(CHECKS / "with_accelerate.py"), *modules)), BOUND)
    assert "DistributedDataParallel ccl 2 [0, 1]\n" in result.stdout, result.output
    for module in modules:
        assert f"done: {module}\n" in result.stdout, result.output
