"""Runs tests/huggingface/checks/course.py, or a program that runs it."""

import json
from pathlib import Path
from typing import Any

import jobs

BOUND = 400.0
CHECKS = Path(__file__).parents[1] / "huggingface" / "checks"


def command(output: Path, script: list[str], *words: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the words for cpudist-train on ccl; the record lies beside the folder `output`."""
    record = ["--backend", "ccl", "--record", str(output.with_suffix(".json")), *options]
    return [*record, str(CHECKS / script[0]), *script[1:], "--output_dir", str(output), *words]


def trained(ranks: int, output: Path, script: list[str], *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train to the end; return what course.py found, the run record and standard error."""
    done = jobs.completed(jobs.mpirun(ranks, *jobs.train(*command(output, script, *words, options=options))), BOUND)
    record = json.loads(output.with_suffix(".json").read_text())
    return {**json.loads((output / "found.json").read_text()), "record": record, "stderr": done.stderr}
