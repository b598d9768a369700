"""TRL's own scripts with adapters, unmodified: supervised fine-tuning and DPO come to the same on ccl as on gloo."""

import importlib.util
import inspect
import json
import random
import statistics
from pathlib import Path

import pytest
from jobs import completed, mpirun, torchrun
from trainer_examples import trained

pytestmark = pytest.mark.job

if importlib.util.find_spec("trl") is None:
    pytest.skip("trl is not installed: it comes with cpudist[dev], and needs a newer datasets", allow_module_level=True)

_ROWS = {
    "sft": lambda text: {"text": text},
    "dpo": lambda text: {"prompt": text[:30], "chosen": text[30:60], "rejected": text[60:90]},
}


@pytest.mark.long
@pytest.mark.parametrize("script", ["sft", "dpo"])
def test_adapters_are_the_same_as_on_gloo(script: str, tmp_path: Path) -> None:
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
