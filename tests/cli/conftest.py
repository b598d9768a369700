"""A run record for the commands that read one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _record(folder: Path, **fields: Any) -> Path:
    record = {"world_size": 2, "hosts": ["n0", "n1"], "backend": "ccl", "gradients": {"compress": "bf16"}}
    record |= {"step_seconds": {"median": 1.2}, "samples_per_second": 10.0, "memory": 2 << 30}
    record |= {"pinning": [{"omp_threads": 1000}]}
    record |= {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": [[0.5, 40_000_000], [0, 40_000_000]]}}
    folder.mkdir()
    (folder / "cpudist.json").write_text(json.dumps(record | fields))
    return folder


@pytest.fixture
def records() -> Callable[..., Path]:
    """Writes the record of a run, with other fields, into a new folder."""
    return _record
