"""Start the job of a plain script whose TrainingArguments have ``ddp_backend="ccl"``.

Guides for Intel's backend use mpirun, srun or torchrun to start ``python3 run_qa.py … --ddp_backend ccl --use_ipex``.
torch calls `register` at the end of `import torch` (entry-point group ``torch.backends``). When the script later
imports TrainingArguments, they are patched to accept the documented flags. If a launcher has started the process, the
first object with ``ddp_backend="ccl"`` calls `cpudist.init`. Objects without such flags change nothing.
"""

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cpudist.patching.on_import import after_import


def register() -> None:
    """Patch TrainingArguments once the script imports them."""
    after_import("transformers.training_args", _prepare)


def _prepare(module: ModuleType) -> None:
    """Patch TrainingArguments until this process ends: the first object that asks for ccl starts the job."""
    # Imported here, because every `import torch` loads this module.
    from cpudist import launchers
    from cpudist.launchers.single import Single

    launcher = launchers.detect()
    from cpudist import api, job
    from cpudist.console import say
    from cpudist.errors import USER_ERROR, UserError
    from cpudist.huggingface import add_callbacks
    from cpudist.huggingface.training_arguments import add_fields
    from cpudist.patching.undo import Changes
    from cpudist.processes.ending import end_now

    cls: Any = getattr(module, "TrainingArguments", None)
    # A running job has its own patches; an unknown version of transformers is reported when a job starts.
    if job.current() is not None or "ddp_backend" not in getattr(cls, "__dataclass_fields__", ()):
        return
    added = add_fields(cls, ["ccl"], Changes())
    original = cls.__post_init__
    timeout = cls.__dataclass_fields__["ddp_timeout"]
    default = timeout.default

    def refuse(line: str) -> None:
        if isinstance(launcher, Single):
            say(line)
            sys.exit(USER_ERROR)  # in a notebook the process goes on
        # All ranks have the same arguments and fail here; without a job the launcher's rank 0 alone prints the line.
        end_now(USER_ERROR, line if launcher.is_main_process else "")

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        if job.current() is not None:
            original(self)
        elif self.ddp_backend == "ccl" and isinstance(launcher, Single):
            refuse("ddp_backend ccl needs a launcher: start the script by mpirun, or by cpudist run")
        elif self.ddp_backend == "ccl":
            try:
                api.init("ccl")
            except UserError as error:
                job.fail(error, rank=launcher.rank)
            # If the value is the default object itself, the user has not set it: the job's own default applies.
            if self.ddp_timeout is default:
                self.ddp_timeout = timeout.default
            cls.__post_init__(self)  # the job has replaced it
            started = job.require()
            started.record.leave_in(Path(self.output_dir))
            add_callbacks(started)
        elif given := [name for name in added if getattr(self, name) != cls.__dataclass_fields__[name].default]:
            options = " and ".join(f"--{name}" for name in given)
            refuse(f"{options} needs a job of cpudist: add --ddp_backend ccl, or start the script by cpudist-train")
        else:
            original(self)

    cls.__post_init__ = post_init
