"""One rank's way through a job: prepare the libraries, run the target, leave together with the others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cpudist import api, failure, huggingface, optimization
from cpudist.huggingface.on_import import after_import
from cpudist.training import record
from cpudist.training.quiet import quiet_libraries

if TYPE_CHECKING:
    from cpudist.training.target import Target
    from cpudist.world import World


def run(target: Target, world: World, record_path: Path | None) -> None:
    """Run `target` to its good end on every rank, or raise what it raised on this one."""
    if world.rank != 0:
        quiet_libraries()
    optimization.forget()
    this = record.begin(world, record_path)
    failure.on_failure(lambda: this.write("failed"))
    with ExitStack() as stack:
        huggingface.install(world)
        stack.callback(huggingface.remove)
        stack.callback(after_import("transformers.trainer", lambda module: _measure(module, this, stack)))
        try:
            target.run()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
    failure.finish()
    this.write("completed")
    api.shutdown()


def _measure(trainer_module: ModuleType, this: record.RunRecord, stack: ExitStack) -> None:
    from cpudist.training.callback import (
        add_to_every_trainer,
    )  # imports transformers: only now that it is there

    stack.callback(add_to_every_trainer(trainer_module, this))
