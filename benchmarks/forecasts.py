"""Compare forecasts from a run on one host with runs on 2 and 4 hosts, at three rates of the network.

    python benchmarks/forecasts.py [--rates 100mbit,1gbit,10gbit] [--hosts 2,4]

As root: the hosts are namespaces of this machine, each with a quarter of a core, which other programs do not get. They
share its caches, so for the run on one host as many hosts train alone at the same time, and the slowest counts. This
is repeated before each group of runs, because the machine's speed changes. About 45 minutes; prints a line for each
run, as it is done.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import jobs  # type: ignore[import-not-found]
from bed import Bed, missing  # type: ignore[import-not-found]
from control_group import control_group  # type: ignore[import-not-found]

from cpudist import job
from cpudist.bench.between_hosts import bert, random_tokens
from cpudist.cli.forecast import network_rate
from cpudist.observability import forecast
from cpudist.observability.gradient_times import GradientTimes

_STEPS, _STEPS_ALONE, _BATCH, _TOKENS = 16, 24, 2, 64  # alone more, whose spread counts too
_SECONDS = 500.0  # of a run, at most
_QUOTA, _PERIOD = 0.25, 8000  # of a core; in microseconds: short, so that a message does not wait long for the next


def train(steps: int, folder: str) -> None:
    """Train a BERT with 24.5 million parameters; a rank of the job."""
    from transformers import Trainer, TrainingArguments

    running = job.require()
    running.observers.add(GradientTimes(running, running.record))
    samples = [{"input_ids": row, "labels": row} for row in random_tokens(0, (4 * _BATCH * steps, _TOKENS))]
    words = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(folder, max_steps=steps, per_device_train_batch_size=_BATCH, **words)
    Trainer(bert(), arguments, train_dataset=samples).train()


class Hosts:
    """Hosts of a bed, each with a part of a core of its own; h0 and h2 share one."""

    def __init__(self, count: int, stack: ExitStack) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._groups = [stack.enter_context(control_group()) for _ in range(count)]
        self.bed = stack.enter_context(Bed(self._folder, count))
        for index, group in enumerate(self._groups):
            used = str(round(_QUOTA * _PERIOD))
            group.limit("cpu", cpu__cfs_period_us=str(_PERIOD), cpu__cfs_quota_us=used, cpu__max=f"{used} {_PERIOD}")
            group.limit("cpu", cpu__shares="65536", cpu__weight="10000")
            group.limit("cpuset", cpuset__cpus=str(index % (os.cpu_count() or 1)))
            self.bed.join(f"h{index}", group)

    def train(self, hosts: int, scheme: str = "") -> dict[str, Any]:
        """Return the record of the first hosts; without a scheme the slowest of those that train alone at one time."""
        names = list(self.bed.addresses)[:hosts]
        together = [str(jobs.BIN / "mpirun"), "-hosts", ",".join(names), "-n", str(hosts), "-ppn", "1"]
        files = [self._folder / f"{name}.json" for name in (names[:1] if scheme else names)]
        running = []
        for name, group, file in zip(names, self._groups, files, strict=False):
            steps = str(_STEPS if scheme else _STEPS_ALONE)
            command = jobs.train("--record", str(file), "--compress", scheme or "none", __file__, "train", steps)
            command = group.inside(together + command if scheme else command)
            running.append(self.bed.start(name, command, file.with_suffix(".log")))
        if any(process.wait(_SECONDS) for process in running):
            sys.exit("".join(file.with_suffix(".log").read_text() for file in files))
        return max((json.loads(file.read_text()) for file in files), key=_step)


def _step(record: dict[str, Any]) -> float:
    return float(record["step_seconds"]["median"])


def main() -> None:
    """Print the forecasts and the runs; exit with status 1 if fewer than 9 of 10 are within a tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100mbit,1gbit,10gbit")
    parser.add_argument("--hosts", default="2,4")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    forecast.BYTE /= _QUOTA  # they are for a whole core
    forecast.VALUE = {scheme: seconds / _QUOTA for scheme, seconds in forecast.VALUE.items()}
    numbers, errors = list(map(int, options.hosts.split(","))), []
    with ExitStack() as stack:
        bed = Hosts(max(numbers), stack)
        for rate in options.rates.split(","):
            bed.bed.limit(rate)
            for hosts in numbers:
                alone = bed.train(hosts)
                print(f"1 of {hosts} hosts alone: {_step(alone):.3f} s", flush=True)
                for scheme in ("none", "bf16", "int8"):
                    run = bed.train(hosts, scheme)
                    expected = forecast.forecast(alone, hosts, scheme, network_rate(rate))
                    errors.append(expected.step / _step(run) - 1)
                    memory = f"memory {expected.memory >> 20} and {run['memory'] >> 20} MB"
                    times = f"forecast {expected.step:.3f} s, measured {_step(run):.3f} s, {100 * errors[-1]:+.1f} %"
                    print(f"{rate}, {hosts} hosts, {scheme}: {times}; {memory}", flush=True)
    good = sum(abs(error) <= 0.1 for error in errors)
    print(f"{good} of {len(errors)} forecasts are within 10 %")
    sys.exit(good < 0.9 * len(errors))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        with tempfile.TemporaryDirectory() as own:
            train(int(sys.argv[2]), own)
    else:
        main()
