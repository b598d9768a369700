"""Trainer's reporters get cpudist's figures with each loss, and the screen and the log's file do not."""

from pathlib import Path
from typing import Any

import pytest
from small_trainer import trained
from transformers import TrainerCallback
from transformers.integrations import integration_utils

from cpudist import job
from cpudist.training.run_target import time_trainer

pytestmark = pytest.mark.versions


class Reporter(TrainerCallback):
    """As transformers' own for tensorboard, wandb and mlflow."""

    seen: list[dict[str, float]]

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Keep what is reported."""
        self.seen.append(dict(logs or {}))


SIX = {"max_steps": 6, "logging_steps": 2, "per_device_train_batch_size": 5}


@pytest.mark.usefixtures("alone")
def test_reporters_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "own", Reporter)
    monkeypatch.setattr(Reporter, "seen", [], raising=False)
    running = job.require()
    time_trainer(running)
    running.record.compared = {"waits": 0.2, "slowest_rank": 3, "delays": 0.1}  # of other ranks
    history = trained(tmp_path, report_to="own", **SIX)
    losses = [logs for logs in Reporter.seen if "loss" in logs]
    assert len(losses) == 4, "after the first step, too"
    assert all(logs["cpudist_samples_per_second"] > 0 for logs in losses)
    figures = {f"cpudist_{name}": value for name, value in running.record.compared.items()}
    assert all(logs.items() >= figures.items() for logs in losses)
    assert not [name for logs in Reporter.seen if "loss" not in logs for name in logs if name.startswith("cpudist")]
    assert not [name for logs in history for name in logs if name.startswith("cpudist")]

    capsys.readouterr()
    trained(tmp_path, **SIX)
    assert "'loss'" in (said := capsys.readouterr().out)
    assert "cpudist_" not in said
