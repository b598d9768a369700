"""What is patched in transformers and accelerate, in this process: its table, its undoing, and what patches do."""

import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import accelerate.state
import pytest
import torch
import torch.distributed as dist
import transformers
import transformers.trainer
from ranks import fork_ranks
from small_trainer import trained
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

import cpudist
from cpudist import UserError, huggingface, job
from cpudist.huggingface import add_callbacks, resuming
from cpudist.huggingface.accelerate_patches import clip_by_blocks
from cpudist.huggingface.uneven_shares import BatchGeometry
from cpudist.optimization import ipex, native

pytestmark = pytest.mark.versions


@pytest.mark.parametrize(
    ("package", "owner", "name", "value"),
    [
        ("accelerate", accelerate, "__version__", "2.0.0"),
        ("accelerate", accelerate, "__version__", "1.2.1"),
        ("accelerate", accelerate.state.PartialState, "_prepare_backend", None),
        ("transformers", transformers, "__version__", "6.0.0"),
        ("transformers", transformers, "__version__", "4.57.5"),
        ("transformers", Trainer, "_wrap_model", None),
        ("transformers", Trainer, "compute_loss", lambda self, model, inputs: None),
        ("transformers", transformers.trainer, "shutil", object()),
    ],
)
@pytest.mark.usefixtures("alone")
def test_other_versions(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], package: str, owner: Any, name: str, value: Any
) -> None:
    """A version that is unknown stays as it is; only on gloo is it used."""
    running, used = job.require(), {"accelerate": accelerate.state.PartialState, "transformers": Trainer}[package]
    monkeypatch.setattr(owner, name, value)
    huggingface.install(running)
    assert used.__init__.__wrapped__, "guarded"
    assert capfd.readouterr().err.count(": going on with it unchanged; pip install") == 1
    object.__setattr__(running.world, "backend", "ccl")
    with pytest.raises(UserError, match=f"cpudist does not know {package} .*; pip install '{package}>=.* gloo"):
        used()
    object.__setattr__(running.world, "backend", "gloo")
    object.__setattr__(running.options, "checkpoint_on_signal", True)
    huggingface.add_callbacks(running)
    assert "CheckpointOnSignal" in {type(callback).__name__ for callback in transformers.trainer.DEFAULT_CALLBACKS}


@pytest.mark.job
def test_an_unknown_accelerate_trains_as_one_world_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate, "__version__", "2.0.0")

    def script() -> None:
        cpudist.init("gloo", pin=False)
        for cpu in (False, True):
            accelerate.state.AcceleratorState._reset_state(True)
            with nullcontext() if cpu else pytest.raises(UserError, match="synchronisation: give --use_cpu"):
                assert accelerate.Accelerator(cpu=cpu).num_processes == 2
        cpudist.shutdown()

    ended = fork_ranks(script)
    assert [status for status, _ in ended] == [0, 0], ended


def test_everything_is_taken_back(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    variables = ("ACCELERATE_TORCH_DEVICE", "USE_TORCH_XLA", "TORCHINDUCTOR_CACHE_DIR")
    for name in variables:
        monkeypatch.delenv(name, raising=False)  # conftest.py and torch have set them
    before = dict(vars(TrainingArguments)), dict(vars(Trainer)), dict(vars(transformers.trainer))
    filters = list(warnings.filters)
    cpudist.init("gloo")
    try:
        assert TrainingArguments("out", use_ipex=True).use_ipex
        assert all(vars(Trainer)[name] is not before[1][name] for name in ("train", "compute_loss", "_save_checkpoint"))
        assert list(warnings.filters) != filters
        assert os.environ.keys() >= {*variables}
        cpudist.optimize(torch.nn.Linear(2, 2), ipex=False)
        warnings.filters.insert(0, user_filter := ("ignore", None, UserWarning, None, 0))
    finally:
        cpudist.shutdown()
    assert list(warnings.filters) == [user_filter, *filters], "what the script has added stays"
    after = dict(vars(TrainingArguments)), dict(vars(Trainer)), dict(vars(transformers.trainer))
    assert before == after, [key for key in after[0] if before[0].get(key) is not after[0][key]]
    assert not os.environ.keys() & {*variables}
    with pytest.raises(SystemExit, match="2"):  # this process has no launcher
        TrainingArguments("out", use_ipex=True, ddp_backend="ccl")
    assert "ddp_backend ccl needs a launcher: start the script by mpirun, or" in capfd.readouterr().err


@pytest.mark.usefixtures("alone")
def test_a_backend_given_outright_comes_before_the_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        TrainingArguments("out", ddp_backend="ccl")
    said = "cpudist: the script asks for the backend ccl; backend='gloo' comes first\n"
    assert capfd.readouterr().err.count(said) == 1


@pytest.mark.usefixtures("alone")
def test_ddp_timeout_bounds_all_groups_each_time_it_is_given() -> None:
    running, parser = job.require(), HfArgumentParser(TrainingArguments)
    if not hasattr(dist.ProcessGroupGloo, "set_timeout"):  # since torch 2.9
        with pytest.raises(UserError, match="77"):
            TrainingArguments("out", ddp_timeout=77)
        return
    for given, bound in ((77, 77), (None, 77), (300, 300), (90, 90), (300, 300)):  # 300 is the default, too
        words = [] if given is None else [f"--ddp_timeout={given}"]
        (parsed,) = parser.parse_args_into_dataclasses(["--output_dir=out", *words])
        assert (parsed.ddp_timeout, running.timeout, type(parsed.ddp_timeout)) == (bound, bound, int)
        assert TrainingArguments("out").ddp_timeout == bound, "not given"
        for group in (dist.group.WORLD, dist.new_group()):
            assert group._get_backend(torch.device("cpu")).options._timeout.total_seconds() == bound


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("precision", "said"), [("bf16", "computing in float32"), ("fp16", "no float16 on CPUs")])
def test_number_formats_that_a_cpu_lacks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], precision: str, said: str
) -> None:
    for name in ("bf16", "fp16"):
        monkeypatch.setattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", lambda: False)
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    with accelerator.autocast():
        assert torch.nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.float32
    assert model(torch.ones(1, 2)).dtype is torch.float32
    assert said in capfd.readouterr().err
    accelerate.state.AcceleratorState._reset_state(True)
    for name in ("fp16", "fp16_full_eval"):
        with pytest.raises(UserError, match="float16"):
            TrainingArguments("out", **{name: True})


@pytest.mark.usefixtures("alone")
def test_use_ipex_clips_by_a_norm_that_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's norm of so many values is wrong by 2e-4. Other norms, and gradients of other types, are left to torch."""
    clip_by_blocks(sharded := SimpleNamespace(distributed_type="FSDP", clip_grad_norm_=None))
    assert sharded.clip_grad_norm_ is None, "of shards"
    clip_by_blocks(accelerator := accelerate.Accelerator())
    for norm, dtype, error in ((2, torch.float32, 1e-6), (1, torch.float32, 3e-3), (2, torch.float64, 1e-6)):
        parameters = [torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size in ((1 << 20, 4), 4097, 0, ())]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        values = torch.cat([parameter.grad.flatten() for parameter in parameters]).double()
        whole = torch.linalg.vector_norm(values, norm).item()
        assert accelerator.clip_grad_norm_(parameters, 0.5, norm).item() == pytest.approx(whole, rel=error)
        clipped = torch.cat([parameter.grad.flatten() for parameter in parameters])
        torch.testing.assert_close(clipped.double(), values * (0.5 / whole), rtol=error, atol=0)
    (alone := torch.nn.Parameter(torch.zeros(2))).grad = torch.tensor([3.0, 4.0])
    assert (accelerator.clip_grad_norm_(alone, 1.0).item(), alone.grad.tolist()) == (5, pytest.approx([0.6, 0.8]))
    norms: list[Any] = []
    monkeypatch.setattr(native, "gradient_norm", lambda gradients: norms.append(1) or torch.tensor(1.0))
    for used in (False, True):
        trained(tmp_path, use_ipex=used, max_steps=3)
        assert len(norms) == 3 * used


def _trainer(ranks: int, batch: int, **changes: Any) -> Any:
    """Return what `_keep_steps` reads of a Trainer of 204 samples on so many ranks."""
    trainer = Trainer.__new__(changes.pop("cls", Trainer))
    args = SimpleNamespace(world_size=ranks, gradient_accumulation_steps=1, dataloader_drop_last=False, process_index=0)
    vars(args).update({"average_tokens_across_devices": True, **changes})
    vars(trainer).update(args=args, _train_batch_size=batch, train_dataset=range(204))
    return trainer


class Weighting(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        (
            {"average_tokens_across_devices": False},
            "2 ranks can have neither equal nor unequal shares: --average_tokens_across_devices is false; start 1$",
        ),
        ({"group_by_length": True}, "grouped by length, samples come in another order on 2 ranks: start 5$"),
        ({"train_sampling_strategy": "group_by_length"}, "grouped by length"),
        ({"cls": Weighting}, "Weighting.compute_loss does not weight unequal shares"),
    ],
)
def test_a_training_that_cannot_go_on_with_the_same_steps_is_a_user_error(changes: dict[str, Any], part: str) -> None:
    trainer = _trainer(2, 6, **changes)
    with pytest.raises(UserError, match=part) as caught:
        resuming._keep_steps(trainer, BatchGeometry(5, 15, 15), "it", balances=False)
    assert str(caught.value).startswith("it has 15 samples in a step, as on the 5 ranks on which it was begun; ")


class Reporter(TrainerCallback):
    """As transformers' own for tensorboard, wandb and mlflow."""

    seen: list[dict[str, float]]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        self.seen.append(dict(logs or {}))


@pytest.mark.usefixtures("alone")
def test_reporters_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Reporters get cpudist's figures with each loss, and the screen and the log's file do not."""
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "own", Reporter)
    monkeypatch.setattr(Reporter, "seen", [], raising=False)
    running, six = job.require(), {"max_steps": 6, "logging_steps": 2, "per_device_train_batch_size": 5}
    add_callbacks(running)
    running.record.compared = {"waits": 0.2, "slowest_rank": 3, "delays": 0.1}  # of other ranks
    history = trained(tmp_path, report_to="own", **six)
    losses = [logs for logs in Reporter.seen if "loss" in logs]
    _, *recorded = running.record.training.losses  # the first step's too
    assert [logs["loss"] for logs in losses] == recorded
    assert len(losses) == 3
    assert all(logs["cpudist_samples_per_second"] > 0 for logs in losses)
    figures = {f"cpudist_{name}": value for name, value in running.record.compared.items()}
    assert all(logs.items() >= figures.items() for logs in losses)
    assert not [name for logs in Reporter.seen if "loss" not in logs for name in logs if name.startswith("cpudist")]
    assert not [name for logs in history for name in logs if name.startswith("cpudist")]

    capsys.readouterr()
    trained(tmp_path, **six, **({"torch_compile_backend": "eager"} if ipex.missing() else {}))
    said = capsys.readouterr()
    assert "'loss'" in said.out
    assert "cpudist_" not in said.out
    assert ("the first two steps took " in said.err) == bool(ipex.missing())
