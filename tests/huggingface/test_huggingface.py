"""Scripts that know nothing of cpudist run on its process group: Trainer with the documented flags, and accelerate."""

import json
from pathlib import Path

import pytest
import torch
from course import BOUND, CHECKS, trained
from jobs import completed, mpirun, train

from cpudist.optimization import ipex

pytestmark = pytest.mark.job

_WORDS = ["--no_cuda", "--ddp_backend", "ccl", "--use_ipex", "--bf16", "--save_only_model", "false"]
_WORDS += ["--lr_scheduler_type", "constant"]


@pytest.mark.versions
def test_flags_from_command_line_files_dictionaries_and_code(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = train("--backend", "ccl", "--record", str(record), str(CHECKS / "flags.py"), str(tmp_path))
    result = completed(mpirun(2, *command), BOUND)
    assert result.stdout.splitlines()[-1] == "DistributedDataParallel ccl 2 cpu False", result.output

    fields = json.loads(record.read_text())
    assert (fields["steps"], fields["dtype"], fields["exit"]) == (20, "bfloat16", "completed")
    assert fields["loss"]["last"] < fields["loss"]["first"]
    assert fields["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    assert "parallel dropout" not in fields["optimizations"], "the flags leave PyTorch's"
    lines = [line for line in result.stderr.splitlines() if "cpudist: optimize: " in line]
    assert len(lines) == 1, result.output
    if ipex.missing():
        assert "warning: --use_ipex: " + ipex.missing() + "; going on with native" in lines[0]


@pytest.mark.versions
def test_saves_resumes_and_loads_the_best(tmp_path: Path) -> None:
    """With a learning rate that ends badly, the last model is not the best. Checkpoints are written beside steps."""
    words = [*_WORDS, "--per_device_train_batch_size", "6", "--max_steps", "40", "--learning_rate", "1e-1"]
    words += ["--save_strategy", "steps", "--save_steps", "10", "--eval_strategy", "steps", "--eval_steps", "10"]
    words += ["--load_best_model_at_end", "--metric_for_best_model", "loss"]
    whole = trained(2, tmp_path / "whole", ["beside.py", "--dropout"], *words, options=("--async-checkpoint",))
    # Evaluated again after training, then with all parameters in float32.
    assert whole["metrics"]["eval_loss"] == pytest.approx(whole["best"], rel=2e-2)
    assert whole["checkpoint"].startswith(str(tmp_path / "whole" / "checkpoint-"))

    checkpoint = str(tmp_path / "whole" / "checkpoint-20")
    words += ["--resume_from_checkpoint", checkpoint]
    resumed = trained(2, tmp_path / "resumed", ["course.py", "--dropout"], *words)
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-5), "the first twenty come from the checkpoint"
    assert resumed["parameters"] == pytest.approx(whole["parameters"], abs=1e-5)


@pytest.mark.versions
def test_ipex_and_bf16_train_and_what_is_saved_is_what_was_trained(tmp_path: Path) -> None:
    """accelerate's move to cpu:0 would corrupt prepacked weights without an error, and the model would not learn."""
    words = [*_WORDS, "--per_device_train_batch_size", "10", "--learning_rate", "5e-3", "--max_steps", "150"]
    found = trained(2, tmp_path / "trained", ["course.py"], *words, "--save_strategy", "no")
    assert found["losses"][-1] < 0.02, "learnt by heart"
    assert found["record"]["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    assert "parallel dropout" in found["record"]["optimizations"]
    assert found["torch_xla"] is False

    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "trained", dtype=torch.float32)
    assert model.config.dtype in (torch.float32, "float32"), "as any other run saves it"
    reloaded = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    assert reloaded == found["parameters"]


@pytest.mark.versions
def test_scripts_with_accelerate_alone() -> None:
    """Also those that accelerate tests itself with, in the same job."""
    modules = [f"accelerate.test_utils.scripts.{name}" for name in ("test_script", "test_ops", "test_sync")]
    result = completed(mpirun(2, *train("--backend", "ccl", str(CHECKS / "with_accelerate.py"), *modules)), BOUND)
    assert "DistributedDataParallel ccl 2 [0, 1]\n" in result.stdout, result.output
    for module in modules:
        assert f"done: {module}\n" in result.stdout, result.output
