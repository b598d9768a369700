"""What the recipes on xla are tried on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from jobs import run
from pretrained import minilm, small_bert

# Most of the time of these jobs is compiling, which takes a fifth of the time without LLVM's expensive passes.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

_EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "stdlib_data.py"


@pytest.fixture(scope="session")
def stdlib_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Docstrings of the standard library, as tables and as questions, and a small BERT without dropout in "model"."""
    import torch
    from transformers import AutoTokenizer, BertModel

    folder = tmp_path_factory.mktemp("stdlib_data")
    assert run([sys.executable, str(_EXAMPLE), str(folder)], timeout=60).returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    config = small_bert(len(tokenizer), width=32, layers=1, heads=2, tokens=64)
    BertModel(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder
