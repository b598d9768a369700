"""Trains recipes from the same start in one way after the other, in the same processes; prints what came out, as JSON.

DATA OUTPUT RECIPE,… WAY…; a way is a backend, a mesh or "made up": xla on devices that the runtime connects. What
computes on XLA comes first: torch's first backward pass makes a queue for each device that it finds. DATA has tables,
questions and a small BERT: the fixture `stdlib_data`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import cpudist
from cpudist import job
from cpudist.training.target import Recipe

data, folder, wanted, *ways = sys.argv[1:]
LANGUAGE = ["--train_file", ast.__file__, "--vocab_size", "400", "--block_size", "32", "--config_overrides"]
PRETRAINED = ["--model_name_or_path", f"{data}/model", "--max_seq_length", "48"]
RECIPES = {
    "clm": [*LANGUAGE, "n_layer=1,n_embd=32,n_head=2"],
    "mlm": [*LANGUAGE, "num_hidden_layers=1,num_attention_heads=2,hidden_size=32,intermediate_size=64"],
    "classify": [*PRETRAINED, "--train_file", f"{data}/train.csv", "--validation_file", f"{data}/validation.csv"],
    # Its logits at padding count, so lengths must be the same.
    "qa": [*PRETRAINED, "--train_file", f"{data}/questions.json", "--doc_stride", "16", "--pad_to_max_length"],
    "images": ["--dataset_name", "digits", "--config_overrides", "width=8"],
}
COMMON = ["--do_train", "--do_eval", "--max_eval_samples", "40", "--max_steps", "8", "--logging_steps", "1"]
COMMON += ["--learning_rate", "5e-3", "--disable_tqdm", "true", "--save_strategy", "no", "--report_to", "none"]

found: dict[str, dict[str, Any]] = {}
for way in ways:
    if way == "made up":
        import made_up

        made_up.connect()
    for name in wanted.split(","):
        mesh = {"mesh": way, "show_sharding": True} if "=" in way else {}
        world = cpudist.init("xla" if mesh or way == "made up" else way, **mesh)
        output = Path(folder, f"{way}-{name}")
        words = ["--per_device_train_batch_size", str(8 // world.size), "--output_dir", str(output)]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            Recipe(name, (*RECIPES[name], *COMMON, *words)).run()
        if world.rank == 0:
            history = json.loads((output / "trainer_state.json").read_text())["log_history"]
            metrics = json.loads((output / "eval_results.json").read_text())
            details = job.require().backend.details()
            found.setdefault(way, {})[name] = {
                "losses": [entry["loss"] for entry in history if "loss" in entry],
                "metrics": {one: metrics[one] for one in metrics if not one.endswith(("runtime", "per_second"))},
                "late": details.get("steps_that_compiled_after_warm_up"),
                "gradients": details.get("gradients"),
            }
            if mesh:
                assert "  pieces of " in said.getvalue(), "nothing lies in pieces"
                assert details["sharding"] == f"parameters by the table of {name}"
        last = world.rank == 0
        cpudist.shutdown()
if last:
    print(json.dumps(found))
