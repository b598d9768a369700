"""Trainer's reporters get cpudist's figures with each loss, and the screen and the log's file do not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_trainer import Model
from transformers import Trainer, TrainerCallback, TrainingArguments
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


def _train(folder: Path, report_to: str) -> list[dict[str, float]]:
    arguments = TrainingArguments(
        str(folder), max_steps=6, logging_steps=2, per_device_train_batch_size=5, report_to=report_to, disable_tqdm=True
    )
    data = [{"x": torch.ones(4), "labels": torch.ones(1)} for _ in range(40)]
    trainer = Trainer(Model(), arguments, train_dataset=data)
    trainer.train()
    return trainer.state.log_history


@pytest.mark.usefixtures("alone")
def test_reporters_get_the_figures_once_for_each_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "own", Reporter)
    monkeypatch.setattr(Reporter, "seen", [], raising=False)
    running = job.require()
    time_trainer(running)
    running.record.compared = {"waits": 0.2, "slowest_rank": 3, "delays": 0.1}  # of other ranks
    history = _train(tmp_path, "own")
    losses = [logs for logs in Reporter.seen if "loss" in logs]
    assert len(losses) == 4, "after the first step, too"
    assert all(logs["cpudist_samples_per_second"] > 0 for logs in losses)
    figures = {f"cpudist_{name}": value for name, value in running.record.compared.items()}
    assert all(logs.items() >= figures.items() for logs in losses)
    assert not [name for logs in Reporter.seen if "loss" not in logs for name in logs if name.startswith("cpudist")]
    assert not [name for logs in history for name in logs if name.startswith("cpudist")]

    capsys.readouterr()
    _train(tmp_path, "none")
    assert "'loss'" in (said := capsys.readouterr().out)
    assert "cpudist_" not in said
