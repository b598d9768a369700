"""Scripts that know nothing of cpudist run on its process group, with Trainer and with accelerate alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import mpirun, run, train

BACKENDS = ["gloo", "ccl"]
BOUND = 120.0

_TRAINER = """
import sys, torch, torch.distributed as dist
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

torch.manual_seed(0)
inputs = torch.randn(64, 4)
data = [{"x": x, "labels": x.sum(0, keepdim=True)} for x in inputs]
arguments, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(model=Model(), args=arguments, train_dataset=data)
trainer.train()
if trainer.is_world_process_zero():
    print(type(trainer.model_wrapped).__name__, dist.get_backend(), arguments.world_size, arguments.device)
"""

_ACCELERATE = """
import torch, torch.distributed as dist
from accelerate import Accelerator, PartialState
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 2))
gathered = accelerator.gather(torch.tensor([accelerator.process_index]))
accelerator.print(type(model).__name__, dist.get_backend(), accelerator.num_processes, gathered.tolist())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unmodified_trainer_script(tmp_path: Path, backend: str) -> None:
    script, record = tmp_path / "script.py", tmp_path / "record.json"
    script.write_text(_TRAINER)
    words = [
        *("--output_dir", str(tmp_path / "out"), "--ddp_backend", backend, "--bf16", "--report_to", "none"),
        *("--max_steps", "20", "--learning_rate", "0.1", "--save_strategy", "no"),
    ]
    command = train("--backend", backend, "--record", str(record), str(script), *words)
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 0, result.output
    assert result.stdout.splitlines()[-1] == f"DistributedDataParallel {backend} 2 cpu", result.output

    fields = json.loads(record.read_text())
    assert (fields["steps"], fields["dtype"], fields["exit"]) == (20, "bfloat16", "completed")
    assert fields["loss"]["last"] < fields["loss"]["first"]
    assert fields["samples_per_second"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_script_with_accelerate_alone(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(_ACCELERATE)
    result = run(mpirun(3, *train("--backend", backend, str(script))), timeout=BOUND)
    assert result.returncode == 0, result.output
    assert result.stdout.strip() == f"DistributedDataParallel {backend} 3 [0, 1, 2]", result.output
    assert result.stderr == ""
