"""What every kind of job has: options as fields of a dataclass, and cpudist-train's arguments.

No number of threads is rendered: how many cores a rank has is known where it runs, and ranks plan it there. A CPU of
Kubernetes or Slurm may be a core or one of its hardware threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from cpudist.render import values

_CHECKPOINT = "--checkpoint-on-signal"
_VARIABLE = {"metavar": "NAME=VALUE", "type": values.variable, "help": "a variable for all ranks"}


def option(metavar: str, type: values.Type, help: str, default: str | None = None) -> Any:
    """Declare a field of a `RenderedJob` that is an option of its command.

    Args:
        metavar: what stands for the value in the help.
        type: a type of `values.py`.
        help: of the option; ` (default DEFAULT)` follows where there is a default.
        default: as users would write it.
    """
    help += f" (default {default})" if default else ""
    return field(metadata={"metavar": metavar, "type": type, "help": help, "default": default})


@dataclass(frozen=True, kw_only=True)
class RenderedJob:
    """A job of one kind, with the values of its options.

    Attributes:
        SUMMARY: what is rendered, in one line for the help.
        arguments: of cpudist-train.
    """

    SUMMARY: ClassVar[str]
    arguments: list[str]
    env: Sequence[tuple[str, str]] = field(metadata={"action": "append", "default": [], **_VARIABLE})

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Add the options that this kind declares."""
        for one in fields(cls):
            if one.metadata:
                parser.add_argument(f"--{one.name.replace('_', '-')}", **one.metadata)

    def contradictions(self) -> list[str]:
        """Return one line for each contradiction between values."""
        raise NotImplementedError

    def render(self) -> str:
        """Return the manifest or script."""
        raise NotImplementedError

    @property
    def train(self) -> list[str]:
        """Arguments of cpudist-train, with a checkpoint on SIGTERM."""
        return [*([] if _CHECKPOINT in self.arguments else [_CHECKPOINT]), *self.arguments]
