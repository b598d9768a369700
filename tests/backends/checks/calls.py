"""What a backend says of calls under way while they are: asked for by another thread, on three ranks.

    python calls.py BACKEND

Rank 2 comes to each collective only when rank 0 has seen, from another thread, what it waits in.
"""

import sys
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import cpudist
from cpudist import job
from cpudist.backends.interface import Calls
from cpudist.waiting import poll

world = cpudist.init(sys.argv[1], timeout=60)
backend, store = job.require().backend, job.require().store


def while_rank_2_is_late(
    step: str, name: str, sequence: int | None, call: Callable[[], object], last: int, **fields: object
) -> None:
    """Check what rank 0 says of itself while it waits for rank 2 in `call`, of that name, number and other fields.

    `last` is the number of the last collective of all ranks that has finished.
    """
    seen: list[Calls] = []

    def waits() -> bool:
        calls = backend.calls()
        # This one: torch's recorder, which gloo's are read from, may not have noted yet that the one before is over.
        if calls is not None and [(call.name, call.sequence) for call in calls.under_way] == [(name, sequence)]:
            seen.append(calls)
        return bool(seen)

    def look() -> None:
        assert poll(waits, 30), f"nothing seen of {step}"
        store.set(step, "seen")

    thread = threading.Thread(target=look, daemon=True)
    if world.rank == 0:
        thread.start()
    if world.rank == 2:
        store.wait([step], timedelta(seconds=40))
    call()
    if world.rank != 0:
        return
    thread.join()
    (found,) = seen[0].under_way
    assert {field: getattr(found, field) for field in fields} == fields
    assert 0 <= found.seconds < 60
    assert [(call.name, call.sequence) for call in seen[0].finished if not call.group] == [("all_reduce", last)]


pair = dist.new_group([2, 0])  # torch sorts them
for _ in range(3):
    dist.all_reduce(torch.ones(4))

of_all = {"group": "", "ranks": None, "peer": None, "dtype": "float32"}
call = lambda: dist.all_reduce(torch.ones(3, 5))  # noqa: E731
while_rank_2_is_late("world", "all_reduce", 4, call, 3, bytes=60, shape=(3, 5), **of_all)

if world.rank in (0, 2):
    gathered = [torch.zeros(2, dtype=torch.int64) for _ in range(2)]
    call = lambda: dist.all_gather(gathered, torch.ones(2, dtype=torch.int64), group=pair)  # noqa: E731
    while_rank_2_is_late("pair", "all_gather", 1, call, 4, ranks=(0, 2), bytes=32, dtype="int64")

if sys.argv[1] == "ccl" and world.rank in (0, 2):  # gloo says nothing of messages
    message = torch.ones(2, dtype=torch.bfloat16)
    call = lambda: dist.recv(message, 2) if world.rank == 0 else dist.send(message, 0)  # noqa: E731
    while_rank_2_is_late("recv", "recv", None, call, 4, group="", peer=2, bytes=4, dtype="bfloat16", shape=(2,))
    call = lambda: dist.recv(message, group=pair) if world.rank == 0 else dist.send(message, 0, pair)  # noqa: E731
    while_rank_2_is_late("any", "recv", None, call, 4, peer=None, ranks=(0, 2))

# Messages between some of the ranks do not change how collectives count.
call = lambda: dist.broadcast(torch.ones(1), 2)  # noqa: E731
while_rank_2_is_late("again", "broadcast", 5, call, 4, bytes=4, shape=(1,), **of_all)
assert poll(lambda: not (backend.calls() or Calls()).under_way, 10)  # torch's recorder may be late
cpudist.shutdown()
