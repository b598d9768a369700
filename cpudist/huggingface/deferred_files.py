"""Large files of a checkpoint, kept in memory while Trainer saves and written later (`--async-checkpoint`)."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cpudist.changes import Changes


class DeferredFiles:
    """What `torch.save` and transformers' `save_pretrained` would have written, by path."""

    def __init__(self) -> None:
        self._content: dict[Path, bytes | memoryview] = {}

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep in memory what this process saves to paths while the block runs."""
        changes = Changes()
        changes.attribute(torch, "save", self._instead_of(torch.save))
        # Packages that import safetensors themselves, such as peft, still write at once.
        changes.attribute(sys.modules["transformers.modeling_utils"], "safe_save_file", self._keep_tensors)
        try:
            yield
        finally:
            changes.undo()

    def write(self) -> None:
        """Write all files and forget them."""
        while self._content:
            path, content = self._content.popitem()
            path.write_bytes(content)

    def _instead_of(self, original: Any) -> Any:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            is_path = isinstance(f, str | os.PathLike)
            target = io.BytesIO() if is_path else f
            original(obj, target, *args, **kwargs)
            if is_path:
                self._content[Path(f)] = target.getbuffer()

        return save

    def _keep_tensors(
        self, tensors: dict[str, torch.Tensor], filename: str, metadata: dict[str, str] | None = None
    ) -> None:
        from safetensors.torch import save

        self._content[Path(filename)] = save(tensors, metadata)
