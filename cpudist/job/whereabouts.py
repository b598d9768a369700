"""Where a rank is: the call that it waits in, what it finished last, and the line of the user's script."""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from cpudist.backends.calls import Call

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.world import World


@dataclass(frozen=True)
class Whereabouts:
    """Where one rank is at one moment.

    Attributes:
        rank, host: whose they are.
        line: the innermost line of the user's code that the main thread is in, as "train.py:88"; empty where there
            is none.
        function: the function that this line belongs to.
        under_way: of the calls that are not complete, each group's oldest and newest, oldest first.
        finished: the collective that was completed last in each group.
        at_end: whether the rank has come to its end and waits for the others there.
        calls_known: whether the backend could say which calls there are.
    """

    rank: int
    host: str
    line: str = ""
    function: str = ""
    under_way: tuple[Call, ...] = ()
    finished: tuple[Call, ...] = ()
    at_end: bool = False
    calls_known: bool = True

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Whereabouts:
        """The reverse of `to_json`. Raises ValueError for any other text."""
        try:
            fields = json.loads(text)
            for key in ("under_way", "finished"):
                fields[key] = tuple(map(_call, fields[key]))
            return cls(**fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the whereabouts of a rank: {error!r}") from None


def here(world: World, backend: Backend | None, *, at_end: bool = False) -> Whereabouts:
    """Where this rank is; asked for by another thread than the main one.

    Args:
        world: this rank's place in the job.
        backend: what it communicates with; None before that has started.
        at_end: whether it has come to its end.
    """
    calls = backend.calls() if backend is not None else None
    line, function = _users_line(sys._current_frames().get(threading.main_thread().ident or 0))
    return Whereabouts(
        world.rank,
        world.hosts[world.node_rank],
        line,
        function,
        _ends_of_each_group(calls.under_way) if calls else (),
        calls.finished if calls else (),
        at_end,
        backend is None or calls is not None,
    )


def _call(fields: dict[str, Any]) -> Call:
    ranks, shape = fields.pop("ranks"), fields.pop("shape")
    return Call(**fields, ranks=None if ranks is None else tuple(ranks), shape=tuple(shape))


def _ends_of_each_group(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Of many calls under way, each group's oldest and newest: a DDP step may have dozens."""
    first: dict[tuple[str, bool], Call] = {}
    last: dict[tuple[str, bool], Call] = {}
    for call in calls:
        key = (call.group, call.sequence is None)
        first.setdefault(key, call)
        last[key] = call
    kept = {id(call) for call in (*first.values(), *last.values())}
    return tuple(call for call in calls if id(call) in kept)


def _users_line(innermost: FrameType | None) -> tuple[str, str]:
    """The line and the function of the innermost frame that is the user's; of any frame where none is."""
    frame = next(filter(_is_users, _outwards(innermost)), innermost)
    if frame is None:  # the main thread has ended
        return "", ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", frame.f_code.co_name


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name.startswith("<"):  # generated code, but for `python -c` and notebooks
        return frame.f_globals.get("__name__") == "__main__"
    recipes, others = _folders()
    return name.startswith(recipes) or not name.startswith(others)  # relative: the user's script


@cache
def _folders() -> tuple[str, tuple[str, ...]]:
    """The folder of the recipes, which users name as their script; and those whose code is not the user's."""
    cpudist = Path(__file__).parents[1]
    paths = sysconfig.get_paths()
    others = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    others |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.__file__), str(cpudist)}
    return str(cpudist / "training" / "recipes"), tuple(os.path.join(os.path.abspath(path), "") for path in others)
