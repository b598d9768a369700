"""What a backend says of calls under way while they are: asked for by another thread, on three ranks.

    python calls.py BACKEND

Rank 2 comes to each collective only when rank 0 has seen, from another thread, what it waits in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import cpudist
from cpudist import job
from cpudist.backends.interface import Call, Calls
from cpudist.waiting import poll

world = cpudist.init(sys.argv[1], timeout=60)
backend, store = job.require().backend, job.require().store
seen: list[Calls] = []


def look(step: str, name: str, sequence: int | None) -> None:
    def waits() -> bool:
        calls = backend.calls()
        # This one: torch's recorder, which gloo's are read from, may not have noted yet that the one before is over.
        if calls is not None and [(call.name, call.sequence) for call in calls.under_way] == [(name, sequence)]:
            seen.append(calls)
        return bool(seen)

    assert poll(waits, 30), f"nothing seen of {step}"
    store.set(step, "seen")


def while_rank_2_is_late(step: str, name: str, sequence: int | None, call: Callable[[], object]) -> Calls | None:
    """What rank 0 says of itself while it waits in `call`, of that name and number, for rank 2."""
    seen.clear()
    thread = threading.Thread(target=look, args=(step, name, sequence), daemon=True)
    if world.rank == 0:
        thread.start()
    if world.rank == 2:
        store.wait([step], timedelta(seconds=40))
    call()
    if world.rank != 0:
        return None
    thread.join()
    return seen[0]


def check(found: Calls | None, **fields: object) -> None:
    if found is None:
        return
    (call,) = found.under_way
    wanted = Call(**{"seconds": call.seconds, **fields})  # type: ignore[arg-type]
    assert call == wanted, (call, wanted)
    assert 0 <= call.seconds < 60


def finished(found: Calls | None) -> dict[str, tuple[str, int | None]]:
    return {call.group: (call.name, call.sequence) for call in found.finished} if found else {}


pair = dist.new_group([2, 0])  # torch sorts them
for _ in range(3):
    dist.all_reduce(torch.ones(4))

found = while_rank_2_is_late("world", "all_reduce", 4, lambda: dist.all_reduce(torch.ones(3, 5)))
check(found, name="all_reduce", sequence=4, bytes=60, dtype="float32", shape=(3, 5))
if found:
    assert finished(found)[""] == ("all_reduce", 3), found

if world.rank in (0, 2):
    gathered = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    call = lambda: dist.all_gather(gathered, torch.ones(2, dtype=torch.int64), group=pair)  # noqa: E731
    found = while_rank_2_is_late("pair", "all_gather", 1, call)
    if found:
        (group,) = (entry.group for entry in found.under_way)
        assert group
        check(found, name="all_gather", group=group, ranks=(0, 2), sequence=1, bytes=32, dtype="int64",
              shape=found.under_way[0].shape)  # fmt: skip
        assert finished(found)[""] == ("all_reduce", 4)

if sys.argv[1] == "ccl":  # gloo says nothing of messages
    message = torch.ones(2, dtype=torch.bfloat16)
    if world.rank in (0, 2):
        call = lambda: dist.recv(message, 2) if world.rank == 0 else dist.send(message, 0)  # noqa: E731
        found = while_rank_2_is_late("recv", "recv", None, call)
        check(found, name="recv", peer=2, bytes=4, dtype="bfloat16", shape=(2,))
        call = lambda: dist.recv(message, group=pair) if world.rank == 0 else dist.send(message, 0, pair)  # noqa: E731
        found = while_rank_2_is_late("any", "recv", None, call)
        if found:
            assert found.under_way[0].peer is None
            assert found.under_way[0].ranks == (0, 2)

# Messages between some of the ranks do not change how collectives count.
found = while_rank_2_is_late("again", "broadcast", 5, lambda: dist.broadcast(torch.ones(1), 2))
check(found, name="broadcast", sequence=5, bytes=4, dtype="float32", shape=(1,))
assert not (backend.calls() or Calls()).under_way
cpudist.shutdown()
