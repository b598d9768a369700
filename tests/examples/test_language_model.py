"""The example of a language model: the same losses and perplexity in one process and on two ranks."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from jobs import mpirun, run, train

pytestmark = pytest.mark.job

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "language_model.py")
LIBRARY = Path(sysconfig.get_path("stdlib"))
BOUND = 300.0
WORDS = [
    "--train_files",
    str(LIBRARY / "heapq.py"),
    str(LIBRARY / "shlex.py"),
    "--eval_files",
    str(LIBRARY / "bisect.py"),
]
WORDS += ["--config_overrides", "n_layer=1,n_embd=32,n_head=2", "--vocab_size", "400", "--block_size", "32"]
WORDS += ["--max_steps", "30", "--learning_rate", "5e-3", "--logging_steps", "1", "--eval_on_start"]
WORDS += ["--save_strategy", "no", "--disable_tqdm", "true", "--report_to", "none"]


def _logged(output: Path, name: str) -> list[float]:
    history: list[dict[str, Any]] = json.loads((output / "trainer_state.json").read_text())["log_history"]
    return [entry[name] for entry in history if name in entry]


@pytest.mark.versions
def test_two_ranks_come_to_the_same_as_one_process(tmp_path: Path) -> None:
    # Outside a job, accelerate would take torch_xla where it is installed.
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache"), "USE_TORCH_XLA": "0"}
    record = tmp_path / "record.json"
    two = [EXAMPLE, *WORDS, "--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "2")]
    result = run(mpirun(2, *train("--backend", "ccl", "--record", str(record), *two)), BOUND, cache)
    assert result.returncode == 0, result.output
    assert result.stdout.count("eval_perplexity         =") == 1, "rank 0 alone prints"
    assert result.stdout.count("The model writes:\n") == 1, result.output
    one = [EXAMPLE, *WORDS, "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "1"), "--use_cpu"]
    result = run([sys.executable, *one], BOUND, cache)
    assert result.returncode == 0, result.output

    said = json.loads(record.read_text())
    assert (said["backend"], said["world_size"], said["steps"], said["exit"]) == ("ccl", 2, 30, "completed")
    losses = _logged(tmp_path / "2", "loss")
    assert losses[-1] < losses[0] - 0.5
    assert losses == pytest.approx(_logged(tmp_path / "1", "loss"), abs=1e-3)
    perplexity = _logged(tmp_path / "2", "eval_perplexity")
    assert perplexity[-1] < 0.6 * perplexity[0]
    assert perplexity == pytest.approx(_logged(tmp_path / "1", "eval_perplexity"), rel=1e-3)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "2" / name).exists(), name
