"""Patches of TrainingArguments: additional fields, and the job's own values.

cpudist adds the fields `ddp_compress`, `own_operators` and `trim_padding`, and for transformers 5 `use_ipex` and
`no_cuda`, so that command lines, JSON and YAML files, dictionaries and calls accept them. `ddp_backend` accepts the
job's backend, and `ddp_timeout` bounds the job's collectives. A job on a CPU backend needs no --use_cpu.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

import torch
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from cpudist.backends.compression import AUTO, check_scheme
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.job.script_groups import check_backend
from cpudist.optimization import precision
from cpudist.patching.undo import Changes
from cpudist.waiting import check_timeout

if TYPE_CHECKING:
    from cpudist.huggingface import Context


def _flag(default: Any, text: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class _Flags:
    use_ipex: bool = _flag(False, "Use Intel's extension for PyTorch; where it is missing, cpudist's operators.")
    own_operators: bool = _flag(True, "With --use_ipex: cpudist's attention, dropout and others where they are faster.")
    trim_padding: bool = _flag(False, "Leave out columns in which a whole batch is padding; the loss stays the same.")
    no_cuda: bool = _flag(False, "The old name of --use_cpu.")
    ddp_compress: str | None = _flag(
        None, "How gradients cross the network: auto, none, bf16, int8, powersgd or powersgd:RANK."
    )


class _NotGiven(float):
    """The default of ddp_timeout; its type tells it apart from the same number given by the user."""


def computing_type(args: Any) -> torch.dtype:
    """Return the type that a Trainer with these arguments computes in; parameters keep their own type."""
    return precision.fitting(torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32)


def add_fields(cls: Any, backends: Iterable[str], changes: Changes) -> list[str]:
    """Add the fields of `_Flags` that TrainingArguments and its subclasses lack, and return their names.

    Also make `ddp_backend` accept `backends`.
    """
    fields = cls.__dataclass_fields__
    flags = [field for field in dataclasses.fields(_Flags) if field.name not in fields]
    metadata = dict(fields["ddp_backend"].metadata)
    if "choices" in metadata:
        metadata["choices"] = list(dict.fromkeys([*metadata["choices"], *backends]))
    changes.attribute(fields["ddp_backend"], "metadata", MappingProxyType(metadata))
    for made in [cls, *_generated(cls)]:
        _add_fields(made, flags, changes)
    return [field.name for field in flags]


def change_fields(cls: Any, context: Context) -> Any:
    """Change the fields of `cls`, TrainingArguments, and of all its subclasses in place, and return `cls`."""
    job = context.job
    add_fields(cls, (job.world.backend, "ccl"), job.changes)
    job.changes.attribute(cls.__dataclass_fields__["ddp_timeout"], "default", _NotGiven(job.timeout))
    return cls


def post_init(original: Callable[[Any], None], context: Context) -> Callable[[Any], None]:
    """Replace `TrainingArguments.__post_init__`: check values against the job; set those that the job determines."""
    job = context.job

    @functools.wraps(original)
    def post_init_for_job(self: Any) -> None:
        given = not isinstance(self.ddp_timeout, _NotGiven)
        seconds = check_timeout(self.ddp_timeout, "ddp_timeout") if given else job.timeout
        self.ddp_timeout = int(seconds) if seconds == int(seconds) else seconds
        if self.ddp_backend is not None:
            self.ddp_backend = check_backend(job, self.ddp_backend)
        self.use_cpu = job.world.device_type == "cpu"
        if self.trim_padding and not self.use_cpu:
            remedy = "leave it out"
            raise UserError(f"--trim_padding is for CPUs: {job.world.device_type} compiles for each width; {remedy}")
        if self.fp16 or self.fp16_full_eval:
            precision.check(torch.float16)
        if self.ddp_compress is not None:
            asked = f"--ddp_compress {self.ddp_compress}"
            job.ddp_models.set_compression(check_scheme(self.ddp_compress, asked), asked)
        elif self.use_ipex and job.ddp_models.compression is None:
            job.ddp_models.set_compression(AUTO, "--use_ipex")
        if job.world.device_type not in _get_fused_kernels_supported_devices():
            _without_fused(self, job.world.backend, is_main_process=job.world.rank == 0)
        if self.ddp_bucket_cap_mb is None:
            self.ddp_bucket_cap_mb = job.backend.ddp_options().get("bucket_cap_mb")
        # transformers 4 warns that no_cuda will be removed; cpudist keeps it.
        no_cuda, self.no_cuda = self.no_cuda, False
        original(self)
        self.no_cuda = no_cuda
        if job.world.size > 1:  # as on GPUs; scripts read local_rank to find out whether there are other ranks
            self.local_rank = job.world.local_rank
        job.set_timeout(seconds)

    return post_init_for_job


def _without_fused(arguments: Any, backend: str, is_main_process: bool) -> None:
    """Replace a fused optimizer, such as transformers' default, by the plain one: this device has no fused ones."""
    name = str(getattr(arguments.optim, "value", arguments.optim))
    if name.endswith("_fused"):
        arguments.optim = name.removesuffix("_fused")
        if is_main_process:
            say(f"{backend} has no fused optimizers: --optim {arguments.optim} instead of {name}")


def _generated(cls: Any) -> Iterator[type]:
    """Yield the subclasses of `cls` whose `__init__`, made by `dataclass`, lacks fields that are added later."""
    for derived in cls.__subclasses__():
        if "__dataclass_fields__" in vars(derived) and "__init__" in vars(derived):
            yield derived
        yield from _generated(derived)


def _add_fields(cls: Any, flags: list[dataclasses.Field[Any]], changes: Changes) -> None:
    """Add `flags` to the fields of the dataclass `cls`, until `changes` are undone."""
    types = get_type_hints(_Flags)
    for field in flags:
        changes.entry(cls.__dataclass_fields__, field.name, field)
        changes.entry(cls.__annotations__, field.name, types[field.name])
        changes.attribute(cls, field.name, field.default)
    original = cls.__init__
    timeout = cls.__dataclass_fields__["ddp_timeout"]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for field in flags:
            setattr(self, field.name, kwargs.pop(field.name, field.default))
        kwargs.setdefault("ddp_timeout", timeout.default)
        original(self, *args, **kwargs)

    changes.attribute(cls, "__init__", init)
