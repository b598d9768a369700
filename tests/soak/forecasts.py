"""Compare forecasts from a run on one host with runs on 2 and 4 hosts, at three rates of the network.

    python tests/soak/forecasts.py [--rates 100mbit,1gbit,10gbit] [--hosts 2,4] [--records FOLDER]

As root: the hosts are namespaces of this machine. They share its cores, so a step computes by sleeping for 1.2 s, and
its gradients of 18.9 million parameters are real. About 25 minutes; prints a line for each run, as it is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_LAYERS, _WIDTH, _SECONDS = 8, 1536, 0.05  # the forward pass of a layer takes so long, the backward pass twice that
_STEPS = 16


def train(folder: str) -> None:
    """Train a model that only pretends to compute; a rank of the job."""
    import torch
    from transformers import Trainer, TrainingArguments

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            time.sleep(_SECONDS)
            context.save_for_backward(weight)
            return values.view_as(values)

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            time.sleep(2 * _SECONDS)
            return gradient.view_as(gradient), context.saved_tensors[0]

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ParameterList(torch.ones(_WIDTH, _WIDTH) for _ in range(_LAYERS))

        def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
            values = values.clone().requires_grad_()
            for layer in self.layers:
                values = Sleep.apply(values, layer)
            return {"loss": values.sum()}

    torch.set_num_threads(1)
    arguments = TrainingArguments(
        folder, max_steps=_STEPS, optim="sgd", max_grad_norm=0, save_strategy="no", report_to=[], disable_tqdm=True
    )
    Trainer(Model(), arguments, train_dataset=[{"values": torch.ones(1)}] * 1024).train()


def main() -> None:
    """Print the forecasts and the runs; exit with status 1 if fewer than 9 of 10 are within a tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="100mbit,1gbit,10gbit")
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--records", type=Path, help="a folder to keep the records in, whose runs are not repeated")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
    from bed import Bed, missing

    if reason := missing():
        sys.exit(reason)
    numbers, errors = list(map(int, options.hosts.split(","))), []
    with tempfile.TemporaryDirectory() as folder, Bed(Path(folder), hosts=max(numbers)) as bed:
        records = options.records or Path(folder)
        one = _run(bed, records / "one.json", 1, "none")
        print(f"1 host: {one['step_seconds']['median']:.3f} s", flush=True)
        for rate in options.rates.split(","):
            bed.limit(rate)
            for hosts in numbers:
                for scheme in ("none", "bf16", "int8"):
                    run = _run(bed, records / f"{rate}-{hosts}-{scheme}.json", hosts, scheme)
                    errors.append(_compare(one, run, rate, hosts, scheme))
    good = sum(abs(error) <= 0.1 for error in errors)
    print(f"{good} of {len(errors)} forecasts are within 10 %")
    sys.exit(good < 0.9 * len(errors))


def _compare(one: dict[str, Any], run: dict[str, Any], rate: str, hosts: int, scheme: str) -> float:
    from cpudist.cli.forecast import network_rate
    from cpudist.forecast import forecast

    expected, measured = forecast(one, hosts, scheme, network_rate(rate)), run["step_seconds"]["median"]
    error = expected.step / measured - 1
    memory = f"memory {expected.memory >> 20} and {run['memory'] >> 20} MB"
    times = f"forecast {expected.step:.3f} s, measured {measured:.3f} s, {100 * error:+.1f} %"
    print(f"{rate}, {hosts} hosts, {scheme}: {times}; {memory}", flush=True)
    return error


def _run(bed: Any, file: Path, hosts: int, scheme: str) -> dict[str, Any]:
    """Train on the first hosts, and return the record."""
    from jobs import BIN

    if not file.exists():
        names = ",".join(list(bed.addresses)[:hosts])
        job = [str(BIN / "mpirun"), "-hosts", names, "-n", str(hosts), "-ppn", "1", str(BIN / "cpudist-train")]
        part = file.with_suffix(".part")
        ended = bed.run("h0", [*job, "--record", str(part), "--compress", scheme, __file__, "train"], timeout=400)
        if ended.returncode:
            sys.exit(ended.output)
        part.rename(file)
    record: dict[str, Any] = json.loads(file.read_text())
    return record


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        with tempfile.TemporaryDirectory() as own:
            train(own)
    else:
        main()
