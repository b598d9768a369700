"""Models of transformers that share a weight between embedding and output layer, under Trainer across hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import mpirun, run, train

SCRIPT = Path(__file__).parent / "checks" / "tied.py"


@pytest.mark.job
@pytest.mark.versions
def test_the_embeddings_part_of_the_gradient_follows_as_rows(tmp_path: Path) -> None:
    words = ["--output_dir", str(tmp_path), "--max_steps", "4", "--gradient_accumulation_steps", "2"]
    words += ["--per_device_train_batch_size", "4", "--learning_rate", "1e-3", "--save_strategy", "no"]
    words += ["--report_to", "none", "--disable_tqdm", "true", "--ddp_backend", "gloo"]
    record = tmp_path / "record.json"
    command = train("--backend", "gloo", "--record", str(record), str(SCRIPT), *words)
    result = run(mpirun(2, *command), timeout=120)
    assert result.returncode == 0, result.output
    rows = json.loads(record.read_text())["gradients"]["embedding_rows"]
    assert rows == ["bert.embeddings.word_embeddings"]
