"""The example of fine-tuning adapters with peft, on two ranks."""

import json
import sys
from pathlib import Path

import pytest
from jobs import completed, mpirun, run, train
from pretrained import minilm
from trainer_examples import EXAMPLES


@pytest.mark.job
def test_adapters_are_trained_alone(tmp_path: Path) -> None:
    assert run([sys.executable, str(EXAMPLES / "stdlib_data.py"), str(tmp_path)], timeout=120).returncode == 0
    output, record = tmp_path / "out", tmp_path / "record.json"
    words = [str(EXAMPLES / "lora.py"), str(tmp_path), minilm(), "--output_dir", str(output), "--ddp_backend", "ccl"]
    words += ["--use_ipex", "--bf16", "--learning_rate", "2e-3", "--max_steps", "12", "--logging_steps", "1"]
    result = completed(mpirun(2, *train("--record", str(record), *words, "--report_to", "none")), timeout=400)
    assert "75268 of 22790024 parameters were trained; accuracy " in result.stdout, result.output
    said = json.loads(record.read_text())
    assert (said["backend"], said["world_size"], said["steps"]) == ("ccl", 2, 12)
    assert said["loss"]["last"] < said["loss"]["first"]
    assert "bfloat16 autocast" in said["optimizations"]
    assert (output / "adapter_model.safetensors").stat().st_size < 4.2 * 75268
