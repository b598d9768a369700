"""The status of a rank: the call that it waits in, its last completed collective, and its line of user code.

Every rank publishes its status in the job's store.
"""

import json
import math
import os
import sys
import threading
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Self

from cpudist import typed_json
from cpudist.backends import Backend
from cpudist.backends.interface import Call, Calls
from cpudist.script.frames import is_user_code
from cpudist.store import Connection
from cpudist.world import World

_KEY = "status/{rank}"
_REQUESTS_PER_SECOND = 500.0  # Most heartbeats of all ranks, each of 4 requests: 4 % of a core (docs/scale.md).


@dataclass(frozen=True)
class Pace:
    """Counters of a rank so far; times are in seconds."""

    steps: int  # optimizer steps
    at: float  # monotonic clock of the rank at this reading
    waited: float | None  # communication wait; None: not measured
    bytes: int | None  # bytes communicated; None: not counted
    loading: float  # time in data loaders
    processor: float  # CPU time of all threads
    memory: int  # resident memory in bytes
    run_queue_delay: float | None  # run-queue delay of the main thread; None: unknown
    faults: int  # page faults
    clock: float | None  # frequency of one of the rank's CPUs in Hz; None: unknown
    threads: int  # computing threads
    # Communication wait as a share of the training time, set at the end of the training; None: unknown.
    communication_share: float | None = None
    # `at` and `waited` at the end of the newest step; None: no step or not measured.
    step_at: float | None = None
    step_waited: float | None = None
    samples: int = 0  # samples computed until the end of that step, if samplers use shares; 0: not counted
    available: int = 0  # free memory in bytes; 0: shares do not follow the ranks' speeds


@dataclass(frozen=True)
class RankStatus:
    """The status of one rank at one moment."""

    rank: int
    host: str
    # The innermost line of the user's code in the main thread, as "train.py:88"; if none runs now, the last one
    # seen. If no user code was seen yet, the innermost line of any Python code; empty if there is none.
    line: str = ""
    under_way: tuple[Call, ...] = ()  # the oldest and the newest incomplete call of each group, oldest first
    finished: tuple[Call, ...] = ()  # the last completed collective of each group
    at_end: bool = False  # whether the script has ended and the rank waits for the others
    calls_known: bool = True  # whether the backend could report its calls
    pace: Pace | None = None  # counters of its training so far; None if they are not measured
    unused: tuple[str, ...] = ()  # names of its groups without a collective so far

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a status that `to_json` has written; raise ValueError for another text."""
        return typed_json.read(cls, json.loads(text))


def status_of(
    world: World, backend: Backend | None, pace: Pace | None = None, line: str = "", *, at_end: bool = False
) -> RankStatus:
    """Return the status of this rank; `line` is the newest result of `user_line` that is not empty."""
    known = backend.calls() if backend is not None else Calls()
    calls = known or Calls()
    return RankStatus(
        world.rank,
        world.hosts[world.node_rank],
        line or user_line() or ("" if at_end else _line(_innermost())),
        _ends_of_each_group(calls.under_way),
        calls.finished,
        at_end,
        known is not None,
        pace,
        calls.unused,
    )


def user_line() -> str:
    """Return the innermost line of the user's code in the main thread, as "train.py:88"; empty if there is none."""
    frames = (frame for frame, _ in traceback.walk_stack(_innermost()) if is_user_code(frame))
    return _line(next(frames, None))


def beat_seconds(ranks: int) -> float:
    """Return the interval in seconds at which each rank may ask the store: 0.25 up to 16 ranks, 1 from 64 to 500."""
    return max(0.25, min(1.0, ranks / 64), ranks / _REQUESTS_PER_SECOND)


def publish(store: Connection, status: RankStatus) -> None:
    store.set({_KEY.format(rank=status.rank): status.to_json().encode()})


def published(store: Connection, size: int, seconds: float = math.inf) -> dict[int, RankStatus]:
    """Return the last status of each of `size` ranks that has published one within the last `seconds`."""
    keys = [_KEY.format(rank=rank) for rank in range(size)]
    found = [rank for rank, age in enumerate(store.ages(keys)) if age is not None and age < seconds]
    values = store.get([keys[rank] for rank in found]) or []
    return {rank: RankStatus.from_json(text.decode()) for rank, text in zip(found, values, strict=True)}


def _ends_of_each_group(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return each group's oldest and newest call: a DDP step may have dozens under way."""
    groups = defaultdict(list)
    for place, call in enumerate(calls):
        groups[call.group, call.sequence is None].append(place)
    ends = sorted(place for places in groups.values() for place in {places[0], places[-1]})
    return tuple(calls[place] for place in ends)


def _innermost() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _line(frame: FrameType | None) -> str:
    if frame is None:  # the main thread has ended
        return ""
    file = os.path.basename(frame.f_code.co_filename)
    return f"{file}, line {frame.f_lineno}" if file.startswith("cell ") else f"{file}:{frame.f_lineno}"  # of a notebook
