"""TrainingArguments: the options of the documented command mean again what they meant.

`use_ipex` and, for transformers 5, `no_cuda` become fields again, so the command line, JSON and YAML files,
dictionaries and calls take them alike; `ddp_backend` takes the job's backend; `ddp_timeout` bounds the job's
collectives. On a CPU backend everything is for the CPU without being told so.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from cpudist.console import say
from cpudist.huggingface.versions import TRANSFORMERS, check_known
from cpudist.optimization.precision import check_fp16

if TYPE_CHECKING:
    from cpudist.changes import Changes
    from cpudist.job import Job

_USED = {"use_cpu", "local_rank", "fp16", "fp16_full_eval", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb"}


@dataclasses.dataclass
class _Flags:
    use_ipex: bool = dataclasses.field(
        default=False,
        metadata={"help": "Use Intel's extension for PyTorch; where it is missing, PyTorch's own means."},
    )
    no_cuda: bool = dataclasses.field(default=False, metadata={"help": "The old name of --use_cpu."})


def patch(training_args: ModuleType, job: Job) -> None:
    """Change `transformers.TrainingArguments`, and the classes derived from it so far and later."""
    cls = training_args.TrainingArguments
    fields = getattr(cls, "__dataclass_fields__", {})
    known = fields.keys() >= _USED and "choices" in fields["ddp_backend"].metadata
    check_known(training_args, known, TRANSFORMERS)

    flags = [field for field in dataclasses.fields(_Flags) if field.name not in fields]
    metadata = dict(fields["ddp_backend"].metadata)
    metadata["choices"] = list(dict.fromkeys([*metadata["choices"], job.world.backend, "ccl"]))
    job.changes.attribute(fields["ddp_backend"], "metadata", MappingProxyType(metadata))
    # So that what the script reads is what holds, and that whoever writes 1800 gets 1800.
    seconds = job.timeout
    job.changes.attribute(fields["ddp_timeout"], "default", int(seconds) if seconds == int(seconds) else seconds)
    job.changes.attribute(cls, "__post_init__", _for_this_job(cls.__post_init__, job))
    for made in [cls, *_generated(cls)]:
        _add_fields(made, flags, job.changes)
    if job.world.device_type == "xla":
        training_args.logger.addFilter(_is_for_others)
        job.changes.then(lambda: training_args.logger.removeFilter(_is_for_others))


def _for_this_job(original: Callable[[Any], None], job: Job) -> Callable[[Any], None]:
    seconds = job.timeout

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        job.check_backend(self.ddp_backend)
        if job.world.device_type == "cpu":
            if self.fp16 or self.fp16_full_eval:
                check_fp16()
            self.use_cpu = True
        if job.world.device_type == "xla":
            if self.fp16 or self.fp16_full_eval:
                job.backend.check_float16()
            self.use_cpu = False
            _without_fused(self, speaks=job.world.rank == 0)
        if self.ddp_bucket_cap_mb is None:
            self.ddp_bucket_cap_mb = job.backend.ddp_options().get("bucket_cap_mb")
        # transformers 4 warns that no_cuda will go away; here it will not.
        no_cuda, self.no_cuda = self.no_cuda, False
        original(self)
        self.no_cuda = no_cuda
        if job.world.size > 1:  # as on GPUs; scripts ask it whether they are alone and whether they are the first here
            self.local_rank = job.world.local_rank
        if self.ddp_timeout != seconds:
            job.set_timeout(self.ddp_timeout)

    return post_init


def _is_for_others(record: logging.LogRecord) -> bool:
    """False for the advice to start with torch.distributed.launch, given wherever a process group is beside XLA."""
    return "parallel_mode != ParallelMode.DISTRIBUTED" not in record.getMessage()


def _without_fused(arguments: Any, speaks: bool) -> None:
    """XLA fuses by itself, and torch's fused optimizers, transformers' default among them, refuse its tensors."""
    name = str(getattr(arguments.optim, "value", arguments.optim))
    if name.endswith("_fused"):
        arguments.optim = name.removesuffix("_fused")
        if speaks:
            say(f"xla has no fused optimizers: --optim {arguments.optim} in the place of {name}")


def _generated(cls: Any) -> Iterator[type]:
    """The classes derived from `cls` whose `__init__` was made by `dataclass`, so without fields that came later."""
    for derived in cls.__subclasses__():
        if "__dataclass_fields__" in vars(derived) and "__init__" in vars(derived):
            yield derived
        yield from _generated(derived)


def _add_fields(cls: Any, flags: list[dataclasses.Field[Any]], changes: Changes) -> None:
    """Make `flags` fields of the dataclass `cls`, as if they had been written into it."""
    for field in flags:
        changes.entry(cls.__dataclass_fields__, field.name, field)
        changes.entry(cls.__annotations__, field.name, bool)
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
