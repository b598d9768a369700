"""The loss curve of a training run as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cpudist.console import say


def draw(history: Sequence[Mapping[str, float]], path: Path, title: str) -> bool:
    """Draw a Trainer's `state.log_history` into `path`; without matplotlib, say so and return False."""
    try:
        # Not pyplot: it would pick a window system; a figure of its own needs none.
        from matplotlib.figure import Figure
    except ImportError:
        say(f'{path.name} was not drawn; pip install "cpudist[plot]" brings matplotlib')
        return False

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    train = _points(history, "loss")
    evaluation = _points(history, "eval_loss")
    if train:
        axes.plot(*zip(*train, strict=True), label="training, mean since the last log", linewidth=1.5)
    if evaluation:
        axes.plot(*zip(*evaluation, strict=True), "o--", label="evaluation", markersize=5)
    axes.set_xlabel("step (optimizer updates)")
    axes.set_ylabel("loss (nats per target)")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if train or evaluation:
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def _points(history: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[name]) for entry in history if name in entry]
