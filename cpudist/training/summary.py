"""A run record in words, `python -m cpudist.training.summary FILE`, and the loss curve as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpudist.console import say
from cpudist.errors import USER_ERROR


def summarize(record: dict[str, Any]) -> str:
    """Return the main facts of a run record as lines; a fact that the job did not know is left out."""
    lines = [f"{name:<15}{text}" for name, text in _facts(record)]
    sample = record.get("results", {}).get("sample")
    if sample:
        lines += [
            "a sample of what the model says:",
            *(f"    {line}".rstrip() for line in sample.splitlines()),
        ]
    return "\n".join(lines)


def _facts(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    hosts = ", ".join(record["hosts"])
    yield "world", f"{record['world_size']} ranks on {hosts}, started by {record['launcher']}"
    yield "backend", f"{record['backend']}, transport {record['transport'] or 'unknown'}"
    if record["steps"]:
        yield "steps", _steps(record)
    if record["samples_per_second"]:
        yield "speed", _speed(record)
    if record["loss"]["first"] is not None:
        yield "loss", f"{record['loss']['first']:.3f} at first, {record['loss']['last']:.3f} at last"
    results = record.get("results", {})
    if "perplexity" in results:
        first, last = results["perplexity"]["first"], results["perplexity"]["last"]
        yield "perplexity", f"{first:.1f} at first, {last:.1f} at last (on held-out text)"
    if "accuracy" in results:
        first, last = results["accuracy"]["first"], results["accuracy"]["last"]
        yield "accuracy", f"{first:.1%} at first, {last:.1%} at last (on samples it has not learnt from)"
    if "curve" in results:
        yield "loss curve", results["curve"]
    yield "ended", record["exit"]


def _steps(record: dict[str, Any]) -> str:
    text = f"{record['steps']} in {record['dtype']}"
    if record["step_seconds"]["median"] is not None:
        median, p95 = (1000 * record["step_seconds"][name] for name in ("median", "p95"))
        text += f", {median:.0f} ms each (median; 95 % within {p95:.0f} ms)"
    if record["communication_share"] is not None:
        text += f", {record['communication_share']:.0%} of it communication"
    return text


def _speed(record: dict[str, Any]) -> str:
    speed = f"{record['samples_per_second']:.1f} samples/s"
    return f"{record['tokens_per_second']:.0f} tokens/s, {speed}" if record["tokens_per_second"] else speed


def draw(history: Sequence[Mapping[str, float]], path: Path, title: str) -> bool:
    """Draw the loss curve of a Trainer's `state.log_history` as a PNG; return whether matplotlib is there to do so."""
    try:
        # pyplot would choose a window system; a figure alone needs none.
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


def main(argv: list[str]) -> int:
    """Print the summary of the file that `argv` names; return the exit status."""
    if len(argv) != 1:
        say("give one run record: python -m cpudist.training.summary FILE")
        return USER_ERROR
    try:
        record = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        say(f"cannot read the run record {argv[0]}: {error}")
        return USER_ERROR
    print(summarize(record))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
