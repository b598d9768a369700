"""Write a small Llama with its tokenizer, texts, and the settings of llamafactory-cli."""

import json
from pathlib import Path

from texts import FOLDER, docstrings
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
tokenizer.eos_token = tokenizer.sep_token
tokenizer.save_pretrained("llama")
set_seed(0)
config = LlamaConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
LlamaForCausalLM(config).save_pretrained("llama")
docs = [{"instruction": doc[:40], "input": "", "output": doc[40:80]} for doc in docstrings(24)]
Path("docs.json").write_text(json.dumps(docs))
Path("dataset_info.json").write_text(json.dumps({"docs": {"file_name": "docs.json"}}))
settings = {
    "model_name_or_path": "../llama",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "lora",
    "dataset_dir": "..",
    "dataset": "docs",
    "template": "alpaca",
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "max_steps": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "ddp_find_unused_parameters": False,
}
Path("settings.yaml").write_text(json.dumps(settings))  # JSON is YAML
