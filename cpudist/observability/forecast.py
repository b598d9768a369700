"""Predict the step time of a training on other numbers of hosts, from a run record and the network's bandwidth.

Each rank keeps its batch size, so the computing time does not depend on the number of hosts. Gradients are sent at the
recorded times. A step waits for the communication that the backward pass does not overlap. A ring allreduce of B bytes
over n hosts sends and receives 2 (n - 1)/n B per host in 2 (n - 1) messages (Thakur, Rabenseifner and Gropp,
"Optimization of Collective Communication Operations in MPICH", 2005). Compression reduces the bytes. Cores that copy,
convert and add bytes cannot compute meanwhile. Each step also waits for the slowest host; the variation of step times
on one host predicts that wait. The computing time of a run is its step time minus these waits and CPU times.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import Any, NamedTuple

from cpudist.errors import UserError

Record = Mapping[str, Any]

# Bytes of a gradient value by scheme (docs/slow-networks.md); PowerSGD's depend on the shapes of the weights.
SCHEMES = {"none": 4.0, "bf16": 2.0, "int8": 4 / 3.9}
BYTE, VALUE = 1e-9, {"none": 0.5e-9, "bf16": 2e-9, "int8": 2.9e-9}  # CPU seconds per byte, and per value
_LATENCY = 5e-5  # Latency of a message in seconds.
_PAYS = 0.05  # Recommend compression only if it shortens the step by 5 %.
_ADDS = 0.5  # Smallest speed-up that justifies another host.


class Forecast(NamedTuple):
    """Predicted step time in seconds, the efficiency relative to one host, and the `measured` step time if known."""

    hosts: int
    compress: str
    step: float
    waiting: float
    samples_per_second: float | None
    efficiency: float
    memory: int
    measured: float | None = None


def check(record: Record, name: str) -> None:
    """Raise a UserError, which calls the record `name`, if the record lacks a field that a forecast needs."""
    if not ((record.get("step_seconds") or {}).get("median") and record.get("gradient_times")):
        raise UserError(f"{name} has no times of gradients; make a run of 12 steps or more with --timeline FILE")
    hosts, compress = kind(record)
    if record["gradient_times"]["waiting"] is None and hosts > 1:
        raise UserError(f"{name} lacks its waits, which {record['backend']} does not measure; make a run with ccl")
    if compress not in SCHEMES:
        raise UserError(f"{name} was made with --compress {compress}; make a run with none, bf16 or int8")


def forecast(
    record: Record, hosts: int, compress: str, bandwidth: float, shares: Sequence[float] | None = None
) -> Forecast:
    """Return the forecast for `hosts` hosts, from a record that `check` has accepted.

    Args:
        compress: one of `SCHEMES`.
        bandwidth: bytes per second of each host in each direction.
        shares: the hosts' speeds relative to each other, the run's hosts first; None: all hosts are equally fast.
    """
    (own, scheme), measured, times = kind(record), record["step_seconds"]["median"], record["gradient_times"]
    computing = measured - (times["waiting"] + _sums(record, own, scheme, bandwidth)[0] if own > 1 else 0.0)
    faster = fmean(shares[:hosts]) / fmean(shares[:own]) if shares else 1.0  # speed relative to the run's hosts
    taken, waiting = _sums(record, hosts, compress, bandwidth) if hosts > 1 else (0.0, 0.0)
    spread = (record["step_seconds"].get("p95", measured) - measured) / NormalDist().inv_cdf(0.95) if own == 1 else 0.0
    waiting += spread * NormalDist().inv_cdf((hosts - 0.375) / (hosts + 0.25))  # expected maximum: Blom (1958)
    step, rate = computing / faster + taken + waiting, record["samples_per_second"]
    errors = (compress == "int8") - (scheme == "int8")  # int8 keeps its rounding errors, in float32
    ranks = record["world_size"] // own
    buckets = (hosts * ranks > 1) - (record["world_size"] > 1)  # memory for DDP's buckets; a single rank has none
    return Forecast(
        hosts,
        compress,
        step,
        waiting,
        rate and rate * measured / own * hosts / step,
        computing / step,
        record["memory"] + 4 * (errors + buckets) * times["values"],
    )


def _sums(record: Record, hosts: int, compress: str, bandwidth: float) -> tuple[float, float]:
    """Return how long allreduces keep a rank's threads from computing, and how long the rank then waits for them."""
    ranks, times = record["world_size"] // len(record["hosts"]), record["gradient_times"]
    parties, share = (hosts, 1 / ranks) if record["backend"] == "ccl" else (hosts * ranks, 1.0)  # ccl sums within hosts
    messages, size = 2 * (parties - 1), sum(size for _, size in times["groups"])
    sent = messages / parties * min(SCHEMES[compress] * times["values"], size)
    work = share * (BYTE * sent + VALUE[compress] * times["values"])
    end, taken = -math.inf, 0.0
    for early, part in times["groups"]:
        end = max(end, taken - early) + messages * _LATENCY + max(sent / bandwidth, work) * part / size
        taken += work / record["pinning"][0]["omp_threads"] * part / size
    return taken, max(end - taken, 0.0)


def kind(record: Record) -> tuple[int, str]:
    """Return the number of a run's hosts, and its compression."""
    return len(record["hosts"]), str((record.get("gradients") or {}).get("compress") or "none").partition(":")[0]


def advice(found: Sequence[Forecast]) -> str:
    """Return a sentence with the bottleneck and best compression on most hosts, and with the speed that hosts add."""
    order = sorted(found, key=lambda one: one.step * (1 + _PAYS * [*SCHEMES].index(one.compress)), reverse=True)
    best = {one.hosts: one for one in order}
    last, plain = best[max(best)], [one for one in found if one.compress == "none"][-1]
    limit = "the network" if 2 * plain.waiting > plain.step else "computing"
    pays = "no --compress" if last == plain else f"--compress {last.compress}"
    speeds = {hosts: hosts * best[hosts].efficiency for hosts in sorted(best)}
    gains = [(few, many, (speeds[many] - speeds[few]) / (many - few)) for few, many in itertools.pairwise(speeds)]
    few, many, gain = next((one for one in gains if one[2] < _ADDS), gains[-1] if gains else (1, 1, 1.0))
    adds = f"from {few} to {many} each adds {gain:.2f} of a host" + (", which does not pay" if gain < _ADDS else "")
    return f"On {last.hosts} hosts {limit} is the limit, and {pays} pays; {adds}."
