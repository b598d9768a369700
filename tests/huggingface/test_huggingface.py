"""Scripts that know nothing of cpudist run on its process group: Trainer with the documented flags, and accelerate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from jobs import Result, mpirun, run, train

from cpudist.optimization import ipex

BACKENDS = ["gloo", "ccl"]
BOUND = 150.0
GLOO_CHANGES_ITS_TIMEOUT = hasattr(dist.ProcessGroupGloo, "set_timeout")  # since torch 2.9
SCRIPTS = Path(__file__).parent / "scripts"

_COURSE = ["--report_to", "none", "--disable_tqdm", "true", "--no_cuda", "--seed", "3", "--save_only_model", "false"]


def _course(ranks: int, output: Path, *words: str, backend: str = "ccl") -> dict[str, Any]:
    """Run course.py on `ranks` ranks and return what it found; it must succeed."""
    script = str(SCRIPTS / "course.py")
    first = ["--dropout"] if "--dropout" in words else []
    words = tuple(word for word in words if word not in first)
    words = (*first, "--output_dir", str(output), "--ddp_backend", backend, *_COURSE, *words)
    record = output.with_suffix(".json")
    result = run(mpirun(ranks, *train("--backend", backend, "--record", str(record), script, *words)), timeout=BOUND)
    assert result.returncode == 0, result.output
    found: dict[str, Any] = json.loads((output / "found.json").read_text())
    return {**found, "record": json.loads(record.read_text()), "result": result}


def _train(ranks: int, output: Path, *words: str, backend: str = "ccl") -> dict[str, Any]:
    words = ("--do_train", "--logging_steps", "1", "--lr_scheduler_type", "constant", *words)
    return _course(ranks, output, *words, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_flags_from_command_line_files_dictionaries_and_code(tmp_path: Path, backend: str) -> None:
    record = tmp_path / "record.json"
    timeout = [] if backend == "ccl" or GLOO_CHANGES_ITS_TIMEOUT else ["--timeout", "77"]  # as the script's ddp_timeout
    command = train("--backend", backend, *timeout, "--record", str(record))
    command += [str(SCRIPTS / "flags.py"), str(tmp_path), backend]
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 0, result.output
    assert result.stdout.splitlines()[-1] == f"DistributedDataParallel {backend} 2 cpu False", result.output

    fields = json.loads(record.read_text())
    assert (fields["steps"], fields["dtype"], fields["exit"]) == (20, "bfloat16", "completed")
    assert fields["loss"]["last"] < fields["loss"]["first"]
    bucket = 100 if backend == "ccl" else 25  # no core to spare for a thread that would overlap them
    assert (fields["gradients"]["bucket_cap_mb"], fields["gradients"]["gradient_as_bucket_view"]) == (bucket, True)
    assert fields["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    lines = [line for line in result.stderr.splitlines() if "cpudist: optimize: " in line]
    assert len(lines) == 1, result.output
    if ipex.missing():
        assert "warning: --use_ipex: " + ipex.missing() + "; going on with native" in lines[0]


def test_trains_as_a_single_process_does(tmp_path: Path) -> None:
    """The same seed and global batch, in float32: the same losses on 1, 2 and 3 ranks, and the same metrics.

    Trainer alone would show twice and three times the loss: this model ignores num_items_in_batch.
    """
    runs = []
    for ranks, batch in ((1, 12), (2, 6), (3, 4)):
        words = ["--per_device_train_batch_size", str(batch), "--max_steps", "20", "--learning_rate", "1e-2"]
        runs.append(_train(ranks, tmp_path / str(ranks), *words, "--save_strategy", "no"))
    for one in runs[1:]:
        assert (one["backend"], one["wrapped"]) == ("ccl", "DistributedDataParallel")
        assert one["losses"] == pytest.approx(runs[0]["losses"], abs=1e-4)
        assert one["metrics"]["eval_accuracy"] == runs[0]["metrics"]["eval_accuracy"]
    assert len(runs[0]["losses"]) == 20
    assert runs[0]["losses"][-1] < 0.8 * runs[0]["losses"][0]


@pytest.mark.parametrize("flags", [[], ["--use_ipex", "--bf16"]], ids=["float32", "use_ipex-bf16"])
def test_saves_resumes_and_loads_the_best(tmp_path: Path, flags: list[str]) -> None:
    words = [*flags, "--per_device_train_batch_size", "6", "--save_strategy", "steps", "--save_steps", "10"]
    half = ["--dropout", "--learning_rate", "1e-2", "--max_steps", "20"]
    whole = _train(2, tmp_path / "whole", *words, *half)
    half += ["--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-10")]
    resumed = _train(2, tmp_path / "resumed", *words, *half)
    assert resumed["losses"] == pytest.approx(whole["losses"], abs=1e-5), "the first ten come from the checkpoint"
    assert resumed["parameters"] == pytest.approx(whole["parameters"], abs=1e-5)

    # A learning rate that ends badly: the last model is not the best.
    words += ["--learning_rate", "1e-1", "--max_steps", "40", "--eval_strategy", "steps", "--eval_steps", "10"]
    best = _train(2, tmp_path / "best", *words, "--load_best_model_at_end", "--metric_for_best_model", "loss")
    # Evaluated again after training, then with all parameters in float32.
    assert best["metrics"]["eval_loss"] == pytest.approx(best["best"], rel=2e-2 if flags else 1e-5)
    assert best["checkpoint"].startswith(str(tmp_path / "best" / "checkpoint-"))


def test_ipex_and_bf16_train_and_what_is_saved_is_what_was_trained(tmp_path: Path) -> None:
    """Prepacked weights would be corrupted without an error by accelerate's move to cpu:0; then this does not learn."""
    words = ["--use_ipex", "--bf16", "--per_device_train_batch_size", "10", "--learning_rate", "5e-3"]
    trained = _train(2, tmp_path / "trained", *words, "--max_steps", "150", "--save_strategy", "no")
    assert trained["losses"][-1] < 0.02, "learnt by heart"
    assert trained["record"]["optimizations"][0] == ("native" if ipex.missing() else "ipex")
    assert trained["torch_xla"] is False

    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "trained", dtype=torch.float32)
    assert model.config.dtype in (torch.float32, "float32"), "as any other run saves it"
    reloaded = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    assert reloaded == trained["parameters"]
    # What was saved computes what was evaluated before; in float32 instead of bfloat16.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 64, (255, 16), generator=generator)[204:]
    with torch.no_grad():
        logits = model.eval()(tokens).logits
    accuracy = ((logits.argmax(1) == (tokens[:, 0] > 33)).double().mean()).item()
    assert accuracy == pytest.approx(trained["metrics"]["eval_accuracy"], abs=0.021)  # one sample of 51 may differ


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", ["world", "new"])
def test_ddp_timeout_bounds_collectives(tmp_path: Path, backend: str, group: str) -> None:
    command = train("--backend", backend, str(SCRIPTS / "late.py"), str(tmp_path), backend, group)
    result = run(mpirun(2, *command), timeout=BOUND)
    if backend == "gloo" and not GLOO_CHANGES_ITS_TIMEOUT:
        assert result.returncode == 2, result.output
        assert "--timeout 5" in result.stderr, result.output
        return
    assert result.returncode != 0, result.output
    assert ("timed out after 5.0 s" if backend == "ccl" else "Timed out waiting 5000ms") in result.stderr, result.output


def test_a_script_of_ones_own_without_cpudist_train(tmp_path: Path) -> None:
    words = ["--init", "--output_dir", str(tmp_path), "--ddp_backend", "ccl", "--use_ipex", "--bf16", "--do_train"]
    words += [*_COURSE, "--max_steps", "3", "--logging_steps", "1", "--save_strategy", "no"]
    result = run(mpirun(2, sys.executable, str(SCRIPTS / "course.py"), *words), timeout=BOUND)
    assert result.returncode == 0, result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["backend"], found["wrapped"]) == ("ccl", "DistributedDataParallel")
    assert len(found["losses"]) == 3


@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own_scripts(script: str) -> None:
    command = train("--backend", "ccl", "-m", f"accelerate.test_utils.scripts.{script}")
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 0, result.output


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--ddp_backend", "gloo"], "--backend gloo"),
        (["--fp16"], "float16"),
    ],
)
def test_what_cannot_be_had_is_one_line(tmp_path: Path, words: list[str], part: str) -> None:
    if "--fp16" in words and torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("this CPU has float16 arithmetic")
    command = train("--backend", "ccl", str(SCRIPTS / "course.py"), "--output_dir", str(tmp_path), *words)
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 2, result.output
    assert part in result.stderr, result.output
    assert result.stderr.count("\n") == 1, result.output


_UNKNOWN = """
import cpudist, {package}
{change}
try:
    cpudist.init("gloo")
    import accelerate.state, transformers.training_args, transformers.trainer
except cpudist.UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "change"),
    [
        ("accelerate", "accelerate.__version__ = '2.0.0'"),
        ("accelerate", "import accelerate.state; del accelerate.state.PartialState._prepare_backend"),
        ("transformers", "transformers.__version__ = '6.0.0'"),
        ("transformers", "import transformers.trainer; del transformers.trainer.Trainer._wrap_model"),
    ],
)
def test_an_unknown_version_is_refused(package: str, change: str) -> None:
    program = _UNKNOWN.format(package=package, change=change)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert f"cpudist does not know {package} " in done.stdout, done.stdout + done.stderr
    assert f"pip install '{package}>=" in done.stdout


_TWICE = """
import os, cpudist
from transformers import Trainer, TrainingArguments
before = dict(vars(TrainingArguments)), dict(vars(Trainer)), dict(os.environ)
cpudist.init("gloo")
assert TrainingArguments("out", use_ipex=True).use_ipex
cpudist.shutdown()
after = dict(vars(TrainingArguments)), dict(vars(Trainer)), dict(os.environ)
assert before[:2] == after[:2], [key for key in after[0] if before[0].get(key) is not after[0][key]]
for name in ("ACCELERATE_TORCH_DEVICE", "USE_TORCH_XLA"):
    assert before[2].get(name) == after[2].get(name)
try:
    TrainingArguments("out", use_ipex=True)
except TypeError:
    print("as it was")
"""


def test_everything_is_taken_back(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _TWICE], capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert done.stdout.strip().endswith("as it was"), done.stdout + done.stderr


_ACCELERATE = """
import torch, torch.distributed as dist
from accelerate import Accelerator, PartialState
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 2))
gathered = accelerator.gather(torch.tensor([accelerator.process_index]))
accelerator.print(type(model).__name__, dist.get_backend(), accelerator.num_processes, gathered.tolist())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_script_with_accelerate_alone(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(_ACCELERATE)
    result: Result = run(mpirun(3, *train("--backend", backend, str(script))), timeout=BOUND)
    assert result.returncode == 0, result.output
    # Before it torch 2.8's gloo says how many peers it has.
    assert result.stdout.splitlines()[-1] == f"DistributedDataParallel {backend} 3 [0, 1, 2]", result.output
    assert result.stderr == ""
