"""Patches of Trainer's checkpoints: each is complete or absent, and contains its training's batch geometry.

Trainer (4.57 and 5.x) writes into `checkpoint-N`, and resumes from the highest N even if it is incomplete. Here every
rank writes into a staging directory, and checkpoints/publishing.py publishes the checkpoint. With `--async-checkpoint`
Trainer saves large files in memory, and a thread writes them while the training continues.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from cpudist.checkpoints import folders, manifest
from cpudist.checkpoints.publishing import Ranks, publisher_of
from cpudist.huggingface.restart_point import adopt
from cpudist.patching.undo import replaced

if TYPE_CHECKING:
    from cpudist.huggingface import Context

_SHUTIL = SimpleNamespace(**{**vars(shutil), "rmtree": folders.delete})


def replace_shutil(original: Any, context: Context) -> Any:
    """Replace `shutil` in a module of transformers: checkpoints are renamed before they are deleted."""
    return _SHUTIL


def save_checkpoint(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._save_checkpoint`: a checkpoint appears under its name only when it is complete."""
    job, background = context.job, context.background

    @functools.wraps(original)
    def save(self: Any, model: Any, trial: Any) -> None:
        background.wait()
        run_dir, name = Path(self._get_output_dir(trial=trial)), f"{folders.PREFIX}{self.state.global_step}"
        publisher, publishes = publisher_of(run_dir.absolute()), self.args.should_save
        written = publisher.begin(name, Ranks(), publishes)
        # The last checkpoint of a training, and checkpoints to upload, are not written in the background.
        later = job.options.async_checkpoint and not (self.control.should_training_stop or self.args.push_to_hub)
        files = DeferredFiles()
        aside = replaced(  # Trainer saves into the staging directory, and uploads nothing from there.
            self,
            _get_output_dir=lambda trial: str(written.parent),
            _push_from_checkpoint=lambda checkpoint_folder: None,
        )
        with publisher.refusing_full_disk(name), aside:
            with files.collect() if later else nullcontext():
                original(self, model, trial)
            _name_the_best(self, run_dir, written)
        trainer, step = context.trainings[self], self.state.global_step
        best, keep = self.state.best_model_checkpoint, self.args.save_total_limit or 0

        def complete(ranks: Ranks) -> None:
            def seal(_: object) -> None:
                adopt(run_dir / name, written)
                manifest.seal(written, step, ranks.size, job.run_ids, trainer)

            publisher.complete(written, ranks, publishes, files.write, seal)
            if publishes and keep > 0:
                found, best_one = folders.numbered(publisher.folder).values(), Path(best).absolute() if best else None
                folders.rotate(found, keep, publisher.saved, best_one)

        if later:
            ranks = background.ranks()
            background.start(lambda: complete(ranks))
            return
        complete(Ranks())
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(run_dir / name))

    return save


def load_best_model(original: Callable[..., None], context: Context) -> Callable[..., None]:
    """Replace `Trainer._load_best_model`: wait until the best checkpoint is complete."""

    @functools.wraps(original)
    def load(self: Any) -> None:
        context.background.wait()
        original(self)

    return load


def _name_the_best(trainer: Any, run_dir: Path, written: Path) -> None:
    """Correct the path of the best checkpoint in the state; Trainer has set a path in the staging directory."""
    state = trainer.state
    if not state.best_global_step:
        return
    name = f"checkpoint-{state.best_global_step}"
    if name == written.name or (run_dir / name).exists():
        state.best_model_checkpoint = os.path.join(run_dir, name)
    if trainer.args.should_save:
        state.save_to_json(str(written / "trainer_state.json"))


class DeferredFiles:
    """Large files that Trainer saves, kept in memory and written later (`--async-checkpoint`)."""

    def __init__(self) -> None:
        self._content: dict[Path, bytes | memoryview] = {}

    @contextmanager
    def collect(self) -> Iterator[None]:
        """During the block, keep the files that this process saves to paths in memory instead of writing them."""
        # Packages that import safetensors themselves, such as peft, still write immediately.
        modeling = sys.modules["transformers.modeling_utils"]
        with replaced(torch, save=self._instead_of(torch.save)), replaced(modeling, safe_save_file=self._keep_tensors):
            yield

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
