"""Fine-tuning adapters on two ranks: the example of peft, and TRL's own scripts, unmodified."""

import importlib.util
import inspect
import json
import random
import statistics
import sys
from pathlib import Path

import pytest
from jobs import completed, mpirun, torchrun, train
from trainer_examples import EXAMPLES, minilm, trained

pytestmark = pytest.mark.job


def test_adapters_are_trained_alone(tmp_path: Path) -> None:
    completed([sys.executable, str(EXAMPLES / "stdlib_data.py"), str(tmp_path)], timeout=120)
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


_ROWS = {
    "sft": lambda text: {"text": text},
    "dpo": lambda text: {"prompt": text[:30], "chosen": text[30:60], "rejected": text[60:90]},
}


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl, of cpudist[dev], is not installed")
@pytest.mark.parametrize("script", _ROWS)
def test_trls_adapters_are_the_same_as_on_gloo(script: str, tmp_path: Path) -> None:
    found = (inspect.getdoc(value) for module in (json, random, statistics) for value in vars(module).values())
    texts = [text for text in found if text and len(text) > 90][:48]
    assert len(texts) == 48
    data = tmp_path / "data" / "train.jsonl"
    data.parent.mkdir()
    data.write_text("".join(json.dumps(_ROWS[script](text)) + "\n" for text in texts))

    # A new GPT-2 with its tokenizer: no package brings a pretrained one.
    sizes = ["--config_overrides", "n_layer=2,n_embd=64,n_head=4", "--vocab_size", "400", "--block_size", "64"]
    trained(tmp_path / "model", 1, "language_model", "--train_files", json.__file__, *sizes, "--max_steps", "1")
    words = ["-m", f"trl.scripts.{script}", "--model_name_or_path", str(tmp_path / "model")]
    words += ["--dataset_name", str(data.parent), "--use_peft", "--lora_target_modules", "c_attn", "c_proj"]
    words += ["--max_length", "64", "--max_steps", "4", "--per_device_train_batch_size", "4", "--learning_rate", "1e-2"]
    words += ["--use_cpu", "--bf16", "false", "--gradient_checkpointing", "false", "--logging_steps", "1"]
    words += ["--report_to", "none", "--save_strategy", "no"]
    saved = {}
    for backend, launch in ("ccl", mpirun(2, "python")), ("gloo", torchrun(2)):
        output = tmp_path / backend
        variables = {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
        completed([*launch, *words, "--ddp_backend", backend, "--output_dir", str(output)], 300, variables)
        saved[backend] = (output / "adapter_model.safetensors").read_bytes()
    record = json.loads((tmp_path / "ccl" / "cpudist.json").read_text())
    assert (record["backend"], record["world_size"], record["steps"]) == ("ccl", 2, 4)
    assert saved["ccl"] == saved["gloo"]
