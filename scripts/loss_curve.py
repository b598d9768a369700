"""Draw the loss curve of a training with Trainer, and print its result: `python scripts/loss_curve.py FOLDER`.

FOLDER holds Trainer's trainer_state.json and the run record cpudist.json, and gets loss.png.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# pyplot would choose a window system; a figure alone needs none.
from matplotlib.figure import Figure


def main(folder: Path) -> None:
    record, state = (json.loads((folder / name).read_text()) for name in ("cpudist.json", "trainer_state.json"))
    where = f"{record['world_size']} ranks on {', '.join(record['hosts'])}, {record['backend']}"
    draw(state["log_history"], f"{folder.name}: {where}").savefig(folder / "loss.png", dpi=120)
    perplexity = _points(state["log_history"], "eval_perplexity")
    print(f"ranks       {where}")
    print(f"steps       {record['steps']} of {1000 * record['step_seconds']['median']:.0f} ms (median)")
    print(f"loss        {record['loss']['first']:.3f} at first, {record['loss']['last']:.3f} at last")
    print(f"perplexity  {perplexity[0][1]:.1f} at first, {perplexity[-1][1]:.1f} at last, on held-out text")
    print(f"loss curve  {folder / 'loss.png'}")


def draw(history: Sequence[Mapping[str, float]], title: str) -> Figure:
    """Draw the losses of a Trainer's log history."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*_points(history, "loss"), strict=True), label="training, mean since the last log", linewidth=1.5)
    axes.plot(*zip(*_points(history, "eval_loss"), strict=True), "o--", label="held-out text", markersize=5)
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _points(history: Sequence[Mapping[str, float]], name: str) -> list[tuple[float, float]]:
    return [(entry["step"], entry[name]) for entry in history if name in entry]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
