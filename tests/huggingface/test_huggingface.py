"""Scripts that know nothing of cpudist run on its process group: Trainer with the documented flags, and accelerate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import mpirun, run, train

from cpudist.optimization import ipex

pytestmark = pytest.mark.job

BOUND = 400.0
SCRIPTS = Path(__file__).parent / "checks"

_WORDS = ["--do_train", "--ddp_backend", "ccl", "--use_ipex", "--bf16", "--no_cuda", "--save_only_model", "false"]
_WORDS += ["--logging_steps", "1", "--lr_scheduler_type", "constant", "--report_to", "none", "--disable_tqdm", "true"]


def _train(output: Path, script: list[str], *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train on two ranks and return what course.py found."""
    record = output.with_suffix(".json")
    command = train("--backend", "ccl", "--record", str(record), *options, str(SCRIPTS / script[0]), *script[1:])
    result = run(mpirun(2, *command, "--output_dir", str(output), *_WORDS, "--seed", "3", *words), timeout=BOUND)
    assert result.returncode == 0, result.output
    return {**json.loads((output / "found.json").read_text()), "record": json.loads(record.read_text())}


@pytest.mark.versions
def test_flags_from_command_line_files_dictionaries_and_code(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = train("--backend", "ccl", "--record", str(record), str(SCRIPTS / "flags.py"), str(tmp_path))
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 0, result.output
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
    words = ["--per_device_train_batch_size", "6", "--max_steps", "40", "--learning_rate", "1e-1"]
    words += ["--save_strategy", "steps", "--save_steps", "10", "--eval_strategy", "steps", "--eval_steps", "10"]
    words += ["--load_best_model_at_end", "--metric_for_best_model", "loss"]
    whole = _train(tmp_path / "whole", ["beside.py", "--dropout"], *words, options=("--async-checkpoint",))
    # Evaluated again after training, then with all parameters in float32.
    assert whole["metrics"]["eval_loss"] == pytest.approx(whole["best"], rel=2e-2)
    assert whole["checkpoint"].startswith(str(tmp_path / "whole" / "checkpoint-"))

    checkpoint = str(tmp_path / "whole" / "checkpoint-20")
    resumed = _train(tmp_path / "resumed", ["course.py", "--dropout"], *words, "--resume_from_checkpoint", checkpoint)
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-5), "the first twenty come from the checkpoint"
    assert resumed["parameters"] == pytest.approx(whole["parameters"], abs=1e-5)


@pytest.mark.versions
def test_ipex_and_bf16_train_and_what_is_saved_is_what_was_trained(tmp_path: Path) -> None:
    """accelerate's move to cpu:0 would corrupt prepacked weights without an error, and the model would not learn."""
    words = ["--per_device_train_batch_size", "10", "--learning_rate", "5e-3", "--max_steps", "150"]
    trained = _train(tmp_path / "trained", ["course.py"], *words, "--save_strategy", "no")
    assert trained["losses"][-1] < 0.02, "learnt by heart"
    assert trained["record"]["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    assert "parallel dropout" in trained["record"]["optimizations"]
    assert trained["torch_xla"] is False

    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "trained", dtype=torch.float32)
    assert model.config.dtype in (torch.float32, "float32"), "as any other run saves it"
    reloaded = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    assert reloaded == trained["parameters"]
    # The saved model has the loss that was evaluated before; it computes in float32 instead of bfloat16.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 64, (255, 16), generator=generator)[204:]
    with torch.no_grad():
        logits = model.eval()(tokens).logits
    accuracy = ((logits.argmax(1) == (tokens[:, 0] > 33)).double().mean()).item()
    assert accuracy == pytest.approx(trained["metrics"]["eval_accuracy"], abs=0.021)  # one sample of 51 may differ


@pytest.mark.versions
def test_scripts_with_accelerate_alone() -> None:
    """Also those that accelerate tests itself with, in the same job."""
    modules = [f"accelerate.test_utils.scripts.{name}" for name in ("test_script", "test_ops", "test_sync")]
    result = run(mpirun(2, *train("--backend", "ccl", str(SCRIPTS / "with_accelerate.py"), *modules)), timeout=BOUND)
    assert result.returncode == 0, result.output
    assert "DistributedDataParallel ccl 2 [0, 1]\n" in result.stdout, result.output
    for module in modules:
        assert f"done: {module}\n" in result.stdout, result.output
