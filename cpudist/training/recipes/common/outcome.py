"""What a recipe leaves behind: metrics printed and saved, the loss curve, and its part of the run record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer

from cpudist import job
from cpudist.training import curve

CURVE = "loss.png"
RECORD = "cpudist.json"


def start_record(output_dir: str, tokens_per_sample: int | None = None) -> None:
    """Let the run record lie in `output_dir` unless the user named a file."""
    this = job.current()
    if this is not None:
        this.record.tokens_per_sample = tokens_per_sample
        this.record.default_path(Path(output_dir) / RECORD)


def report(trainer: Trainer, split: str, metrics: dict[str, float]) -> None:
    """Print the metrics of "train" or "eval" and save them in the output folder and the run record."""
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
    add_results({split: metrics})


def add_results(results: dict[str, Any]) -> None:
    """Put something that only this recipe knows into the run record."""
    this = job.current()
    if this is not None:
        this.record.results.update(results)


def report_sample(what: str, sample: str) -> None:
    """Show a sample of what a trained model does; the run record gets it, too."""
    add_results({"sample": sample})
    print(f"a sample of {what}:\n{sample}", flush=True)


def draw_curve(trainer: Trainer, recipe: str) -> None:
    """Draw the loss curve into the output folder, on rank 0."""
    if not trainer.is_world_process_zero():
        return
    path = Path(trainer.args.output_dir) / CURVE
    this = job.current()
    where = f": {this.world.size} ranks, {this.world.backend}" if this is not None else ""
    if curve.draw(trainer.state.log_history, path, f"{recipe}{where}"):
        add_results({"curve": str(path)})
