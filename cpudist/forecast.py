"""Forecast of a training on other numbers of hosts, from the record of a run and the bandwidth of the network.

Each rank keeps its batch, so a step computes as long on every host as on one. Its gradients leave in the order and at
the times that the record has; a step waits for what the rest of the backward pass does not hide. To sum B bytes over n
hosts, each sends and receives 2 (n - 1)/n B, in 2 (n - 1) messages: the ring of Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH" (2005). Compression makes the bytes fewer, and converts
each value there and back. The computing of a run on several hosts is its step less its waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cpudist.errors import UserError

Record = Mapping[str, Any]

# Bytes of a value by scheme, as docs/slow-networks.md has them; PowerSGD's depend on the shapes of the weights.
SCHEMES = {"none": 4.0, "bf16": 2.0, "int8": 4 / 3.9}
_CONVERTING = 1e-9  # seconds for a value, of which that page has half for one way
_LATENCY = 5e-5  # seconds of a message
_PAYS = 0.05  # of a step: what compression must save
_ADDS = 0.5  # of a host: what another one must add


class Forecast(NamedTuple):
    """A step on so many hosts, in seconds, and its efficiency against one host; `measured` where the run was such."""

    hosts: int
    compress: str
    step: float
    waiting: float
    measured: float | None
    samples_per_second: float | None
    efficiency: float
    memory: int


def check(record: Record, name: str) -> None:
    """Check that the record, which the user calls `name`, has what a forecast needs.

    Raises:
        UserError: it has not.
    """
    if not ((record.get("step_seconds") or {}).get("median") and record.get("gradient_times")):
        raise UserError(f"{name} has no times of steps and gradients; make a run of 12 steps or more with this version")
    if record["gradient_times"]["waiting"] is None and len(record["hosts"]) > 1:
        raise UserError(f"{name} does not say how long it waited, being of {record['backend']}; make a run with ccl")
    if _compress(record) not in SCHEMES:
        raise UserError(f"{name} is of --compress {_compress(record)}; make a run with none, bf16 or int8")


def forecast(record: Record, hosts: int, compress: str, bandwidth: float) -> Forecast:
    """Return a step on so many hosts, from a record that `check` has passed.

    Args:
        compress: one of `SCHEMES`.
        bandwidth: of each host, bytes a second in each direction.
    """
    own, measured, times = len(record["hosts"]), record["step_seconds"]["median"], record["gradient_times"]
    computing = measured - (times["waiting"] if own > 1 else 0.0)
    waiting = _waiting(record, hosts, compress, bandwidth) if hosts > 1 else 0.0
    step, rate = computing + waiting, record["samples_per_second"]
    errors = (compress == "int8") - (_compress(record) == "int8")  # of rounding, in float32, which int8 keeps
    return Forecast(
        hosts,
        compress,
        step,
        waiting,
        measured if (hosts, compress) == (own, _compress(record)) else None,
        rate and rate * measured / own * hosts / step,
        computing / step,
        record["memory"] + 4 * errors * times["values"],
    )


def _waiting(record: Record, hosts: int, compress: str, bandwidth: float) -> float:
    """Return how long after the last gradient the last sum is complete."""
    sums_in_hosts = record["backend"] == "ccl"
    parties = hosts if sums_in_hosts else hosts * record["world_size"] // len(record["hosts"])
    values, groups = record["gradient_times"]["values"], record["gradient_times"]["groups"]
    width = sum(size for _, size in groups) / values
    sent = min(SCHEMES[compress], width)
    value = 2 * (parties - 1) / parties * sent / bandwidth + (_CONVERTING if sent < width else 0.0)
    end: float = -groups[0][0]
    for early, size in groups:
        end = max(end, -early) + 2 * (parties - 1) * _LATENCY + value * size / width
    return max(end, 0.0)


def _compress(record: Record) -> str:
    return str((record.get("gradients") or {}).get("compress") or "none").partition(":")[0]


def advice(found: Sequence[Forecast]) -> str:
    """Return in a sentence what limits the most hosts, which compression pays there, and where hosts stop paying."""

    def cost(one: Forecast) -> float:
        return one.step * (1 + _PAYS * [*SCHEMES].index(one.compress))  # compression changes numbers

    best = {one.hosts: one for one in sorted(found, key=cost, reverse=True)}
    last, plain = best[max(best)], [one for one in found if one.compress == "none"][-1]
    limit = "the network" if 2 * plain.waiting > plain.step else "computing"
    pays = "no --compress" if last == plain else f"--compress {last.compress}"
    speeds = {hosts: hosts * best[hosts].efficiency for hosts in sorted(best)}
    gains = [(few, many, (speeds[many] - speeds[few]) / (many - few)) for few, many in itertools.pairwise(speeds)]
    few, many, gain = next((one for one in gains if one[2] < _ADDS), gains[-1] if gains else (1, 1, 1.0))
    adds = f"from {few} to {many} each one adds {gain:.2f} of a host" + (", which does not pay" if gain < _ADDS else "")
    return f"On {last.hosts} hosts {limit} is the limit, and {pays} pays; {adds}."
