"""Every rank tells every other one something, through a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cpudist.console import first_line
from cpudist.errors import StartupTimeout
from cpudist.waiting import poll

if TYPE_CHECKING:
    from torch.distributed import Store


def exchange(
    store: Store,
    rank: int,
    size: int,
    key: str,
    value: str,
    timeout: float,
    what: str = "starting the job",
    meanwhile: Callable[[], object] | None = None,
) -> list[str]:
    """Publish this rank's value under `key` and return every rank's, in rank order.

    Args:
        store: the store that all ranks share; a key serves once in it.
        timeout: seconds to wait for the others.
        what: what this is done for; it begins the error message.
        meanwhile: called again and again while others are awaited; see `cpudist.waiting.poll`.

    Raises:
        StartupTimeout: some ranks have not published theirs in time (the message names them), or the store is gone.
    """
    keys = [f"{key}/{other}" for other in range(size)]
    missing = set(range(size)) - {rank}

    def all_there() -> bool:
        # Not store.wait: it prints torch's own warnings, with C++ frames, when the time is over.
        missing.difference_update([other for other in missing if store.check([keys[other]])])
        return not missing

    try:
        store.set(keys[rank], f"={value}")  # a store drops values that are empty
        if not poll(all_there, timeout, meanwhile):
            names = ", ".join(map(str, sorted(missing)))
            raise StartupTimeout(
                f"{what}: after {timeout:g} s still waiting for rank{'s' * (len(missing) > 1)} {names} of {size}; "
                "look at their output, or give more time with --timeout"
            )
        return [text.decode()[1:] for text in _get_all(store, keys)]
    except RuntimeError as error:  # torch's DistError
        raise StartupTimeout(f"{what}: lost the store of rank 0: {first_line(error)}") from None


def _get_all(store: Store, keys: list[str]) -> list[bytes]:
    try:
        return list(store.multi_get(keys))
    except RuntimeError:  # not every kind of store has it
        return [store.get(key) for key in keys]
