"""Trains recipes for 20 steps, from the same start, on each of the meshes; prints all losses, as JSON.

DATA OUTPUT RECIPE,… MESH…; a mesh of "one" is one device. All have as many devices: a process has its devices for good.
DATA has tables, questions and a small BERT: the fixture `stdlib_data`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path

import cpudist
from cpudist import job
from cpudist.training.target import Recipe

data, folder, wanted, *meshes = sys.argv[1:]
text = Path(folder, "text.txt")
text.write_text(Path(ast.__file__).read_text(encoding="utf-8"), encoding="utf-8")
LANGUAGE = ["--train_file", str(text), "--vocab_size", "400", "--block_size", "32", "--config_overrides"]
PRETRAINED = ["--model_name_or_path", f"{data}/model", "--max_seq_length", "48"]
RECIPES = {
    "clm": [*LANGUAGE, "n_layer=1,n_embd=32,n_head=2"],
    "mlm": [*LANGUAGE, "num_hidden_layers=1,num_attention_heads=2,hidden_size=32,intermediate_size=64"],
    "classify": [*PRETRAINED, "--train_file", f"{data}/train.csv"],
    "qa": [*PRETRAINED, "--train_file", f"{data}/questions.json", "--doc_stride", "16", "--pad_to_max_length"],
    "images": ["--dataset_name", "digits", "--config_overrides", "width=16"],
}
COMMON = ["--do_train", "--max_steps", "20", "--logging_steps", "1", "--per_device_train_batch_size", "8"]
COMMON += ["--learning_rate", "5e-3", "--disable_tqdm", "true", "--save_strategy", "no", "--report_to", "none"]

losses: dict[str, dict[str, list[float]]] = {}
for mesh in meshes:
    for name in wanted.split(","):
        cpudist.init("xla", mesh=None if mesh == "one" else mesh, show_sharding=mesh != "one")
        output = Path(folder, f"{mesh}-{name}")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            Recipe(name, (*RECIPES[name], *COMMON, "--output_dir", str(output))).run()
        history = json.loads((output / "trainer_state.json").read_text())["log_history"]
        losses.setdefault(mesh, {})[name] = [entry["loss"] for entry in history if "loss" in entry]
        if mesh != "one":
            assert "  pieces of " in said.getvalue(), "nothing lies in pieces"
            assert job.require().backend.details()["sharding"] == f"parameters by the table of {name}"
        cpudist.shutdown()
print(json.dumps(losses))
