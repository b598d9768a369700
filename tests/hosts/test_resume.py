"""A training that loses a host goes on without it, with the steps that it was begun with."""

from __future__ import annotations

import json
import sysconfig
import threading
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN

from cpudist.backends.ccl.compilation import cache_folder
from cpudist.huggingface.restart_point import checkpoints
from cpudist.waiting import poll

pytestmark = pytest.mark.job

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "language_model.py")
STEPS, RATE = 60, 1e-3
MODEL = ["--config_overrides", "n_layer=2,n_embd=32,n_head=2", "--vocab_size", "512", "--block_size", "16"]


@pytest.mark.long
def test_4_ranks_then_3_with_the_same_schedule(own_bed: Bed, tmp_path: Path) -> None:
    """8 samples in a step: 2 each, then 2 or 3. The learning rate falls from step to step as on 4 ranks."""
    hosts, output = tmp_path / "hosts", tmp_path / "out"
    hosts.write_text("h0:3\nh1:1\n")
    words = ["launch", "--hostfile", str(hosts), "--max-restarts", "1", "--min-nodes", "1"]
    words += ["--", "--timeout", "15", EXAMPLE, *MODEL]
    words += ["--train_files", f"{sysconfig.get_path('stdlib')}/heapq.py", "--output_dir", str(output)]
    words += ["--max_steps", str(STEPS), "--save_steps", "20", "--learning_rate", str(RATE), "--logging_steps", "1"]
    words += ["--per_device_train_batch_size", "2", "--save_total_limit", "1", "--disable_tqdm", "true"]

    def lose_h1() -> None:
        if poll(lambda: bool(checkpoints(output)), 100):
            own_bed.kill("h1")

    breaker = threading.Thread(target=lose_h1, daemon=True)
    breaker.start()
    cache = {"CPUDIST_CACHE": str(cache_folder())}
    result = own_bed.run("h0", [str(BIN / "cpudist"), *words], timeout=180, env=cache)
    breaker.join(10)
    assert result.returncode == 0, result.output
    assert "starting again (1 of 1) with 3 ranks on h0" in result.stderr
    assert "8 samples in a step, as on the 4 ranks that it was begun with; going on with as many at 3" in result.stderr
    state = json.loads((output / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    logged = [(entry["step"], entry["learning_rate"]) for entry in state["log_history"] if "learning_rate" in entry]
    assert [step for step, _ in logged] == list(range(1, STEPS + 1))
    assert [rate for _, rate in logged] == pytest.approx([RATE * (1 - step / STEPS) for step in range(STEPS)])
