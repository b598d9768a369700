"""The example of a language model: the same losses and perplexity in one process and on two ranks."""

import json
import re
import sysconfig
from pathlib import Path

import pytest
from trainer_examples import trained

LIBRARY = Path(sysconfig.get_path("stdlib"))
WORDS = ["--train_files", str(LIBRARY / "heapq.py"), str(LIBRARY / "shlex.py")]
WORDS += ["--eval_files", str(LIBRARY / "bisect.py"), "--eval_on_start", "--block_size", "32"]
WORDS += ["--config_overrides", "n_layer=1,n_embd=32,n_head=2", "--vocab_size", "400"]
WORDS += ["--max_steps", "30", "--learning_rate", "5e-3", "--logging_steps", "1", "--per_device_train_batch_size"]


@pytest.mark.job
def test_two_ranks_come_to_the_same_as_one_process(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    options = ["--backend", "ccl", "--record", str(record)]
    result, two = trained(tmp_path / "2", 2, "language_model", *WORDS, "4", options=options)
    assert result.stdout.count("eval_perplexity         =") == 1, "rank 0 alone prints"
    assert result.stdout.count("The model writes:\n") == 1, result.output
    _, one = trained(tmp_path / "1", 1, "language_model", *WORDS, "8")

    said = json.loads(record.read_text())
    assert (said["backend"], said["world_size"], said["steps"], said["exit"]) == ("ccl", 2, 30, "completed")
    assert re.fullmatch(r"\d+ calls, \d+ bytes", said["details"]["carried_by_shared_memory"])
    assert two["loss"][-1] < two["loss"][0] - 0.5
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert two["eval_perplexity"][-1] < 0.6 * two["eval_perplexity"][0]
    assert two["eval_perplexity"] == pytest.approx(one["eval_perplexity"], rel=1e-3)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "2" / name).exists(), name
