"""TrainingArguments: the words of the documented command mean again what they meant.

`use_ipex` and, for transformers 5, `no_cuda` become fields again, so the command line, JSON and YAML files,
dictionaries and calls take them alike; `ddp_backend` takes the job's backend; `ddp_timeout` bounds the job's
collectives. Everything is for the CPU without being told so.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from cpudist import session
from cpudist.huggingface.patch import Patches, check_known
from cpudist.huggingface.state import agreed
from cpudist.optimization.precision import check_fp16

if TYPE_CHECKING:
    from cpudist.world import World


_USED = {"use_cpu", "local_rank", "fp16", "fp16_full_eval", "ddp_backend", "ddp_timeout", "ddp_bucket_cap_mb"}


@dataclasses.dataclass
class _Flags:
    use_ipex: bool = dataclasses.field(
        default=False,
        metadata={"help": "Use Intel's extension for PyTorch; where it is missing, PyTorch's own means."},
    )
    no_cuda: bool = dataclasses.field(default=False, metadata={"help": "The old name of --use_cpu."})


def patch(training_args: ModuleType, world: World, patches: Patches) -> None:
    """Change `transformers.TrainingArguments`, and the classes derived from it so far and later."""
    cls = training_args.TrainingArguments
    fields = getattr(cls, "__dataclass_fields__", {})
    known = fields.keys() >= _USED and "choices" in fields["ddp_backend"].metadata
    check_known(training_args, range(4, 6), known, "transformers>=4.57.6,<6")

    flags = [field for field in dataclasses.fields(_Flags) if field.name not in fields]
    metadata = dict(fields["ddp_backend"].metadata)
    metadata["choices"] = list(dict.fromkeys([*metadata["choices"], world.backend, "ccl"]))
    patches.attribute(fields["ddp_backend"], "metadata", MappingProxyType(metadata))
    # So that what the script reads is what holds, and that whoever writes 1800 gets 1800.
    seconds = session.timeout()
    patches.attribute(fields["ddp_timeout"], "default", int(seconds) if seconds == int(seconds) else seconds)
    patches.attribute(cls, "__post_init__", _for_this_job(cls.__post_init__, world, seconds))
    for made in [cls, *_generated(cls)]:
        _add_fields(made, flags, patches)


def _for_this_job(original: Callable[[Any], None], world: World, seconds: float) -> Callable[[Any], None]:
    @functools.wraps(original)
    def post_init(self: Any) -> None:
        agreed(self.ddp_backend, world)
        if self.fp16 or self.fp16_full_eval:
            check_fp16()
        self.use_cpu = True
        if self.ddp_bucket_cap_mb is None:
            self.ddp_bucket_cap_mb = session.ddp_options().get("bucket_cap_mb")
        # transformers 4 warns that no_cuda will go away; here it will not.
        no_cuda, self.no_cuda = self.no_cuda, False
        original(self)
        self.no_cuda = no_cuda
        if world.size > 1:  # as on GPUs; scripts ask it whether they are alone and whether they are the first here
            self.local_rank = world.local_rank
        if self.ddp_timeout != seconds:
            session.set_timeout(self.ddp_timeout)

    return post_init


def _generated(cls: Any) -> Iterator[type]:
    """The classes derived from `cls` that have an `__init__` made by `dataclass`; it knows the fields of its time."""
    for derived in cls.__subclasses__():
        if "__dataclass_fields__" in vars(derived) and "__init__" in vars(derived):
            yield derived
        yield from _generated(derived)


def _add_fields(cls: Any, flags: list[dataclasses.Field[Any]], patches: Patches) -> None:
    """Make `flags` fields of the dataclass `cls`, as if they had been written into it."""
    for field in flags:
        patches.entry(cls.__dataclass_fields__, field.name, field)
        patches.entry(cls.__annotations__, field.name, bool)
        patches.attribute(cls, field.name, field.default)
    original = cls.__init__
    timeout = cls.__dataclass_fields__["ddp_timeout"]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for field in flags:
            setattr(self, field.name, kwargs.pop(field.name, field.default))
        kwargs.setdefault("ddp_timeout", timeout.default)
        original(self, *args, **kwargs)

    patches.attribute(cls, "__init__", init)
