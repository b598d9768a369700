"""Compare equal shares with --balance on hosts of unequal speed: samples per second after the first 40 steps.

    python benchmarks/unequal_hosts.py [--speeds 0.6,0.2] [--turns 3] [--bfloat16]

As root: the hosts are namespaces of this machine, each with a part of a core, which other programs do not get. Each
turn trains with equal shares and with --balance. About a minute a turn.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import jobs  # type: ignore[import-not-found]
import torch
from bed import Bed, missing  # type: ignore[import-not-found]
from control_group import control_group  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, TensorDataset

import cpudist

_STEPS, _WARM_UP, _PER_STEP, _TOKENS, _WIDTH = 100, 40, 16, 64, 192
_SECONDS = 500.0  # of a run, at most
_PERIOD = 8000  # of a quota, in microseconds: short, so that a message does not wait long for the next


def train(file: str, bfloat16: bool) -> None:
    """Train an encoder in a loop of one's own; a rank of the job."""
    world = cpudist.init()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True)
    model = cpudist.wrap(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(_STEPS * _PER_STEP, _TOKENS, _WIDTH))
    sizes, began = [], 0.0
    for number, (batch,) in enumerate(DataLoader(data, batch_sampler=cpudist.shares(data, _PER_STEP // world.size))):
        if number == _WARM_UP:
            began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = (model(batch) - batch).square().mean()
        loss.backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()
        sizes.append(len(batch))
    rate = (_STEPS - _WARM_UP) * _PER_STEP / (time.perf_counter() - began)
    last = float(cpudist.mean(loss.detach() * len(batch) * world.size / _PER_STEP))
    if world.rank == 0:
        Path(file).write_text(json.dumps({"rate": rate, "sizes": sizes, "loss": last}))


def main() -> None:
    """Print the rates of each turn, and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", default="0.6,0.2", help="the part of a core of each host")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bfloat16", action="store_true")
    options = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    quotas, ratios = list(map(float, options.speeds.split(","))), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        groups = [stack.enter_context(control_group()) for _ in quotas]
        bed = stack.enter_context(Bed(folder, len(quotas)))
        for index, (group, quota) in enumerate(zip(groups, quotas, strict=True)):
            used = str(round(quota * _PERIOD))
            group.limit("cpu", cpu__cfs_period_us=str(_PERIOD), cpu__cfs_quota_us=used, cpu__max=f"{used} {_PERIOD}")
            group.limit("cpu", cpu__shares="65536", cpu__weight="10000")
            group.limit("cpuset", cpuset__cpus=str(index % 2))
            bed.join(f"h{index}", group)
        together = ["mpirun", "-hosts", ",".join(bed.addresses), "-n", str(len(quotas)), "-ppn", "1"]
        together[0] = str(jobs.BIN / together[0])
        file, words = folder / "found.json", ["bfloat16"] * options.bfloat16
        for _ in range(options.turns):
            found = {}
            for how in ("equal", "balance"):
                flags = ["--record", str(folder / "record.json"), *(["--balance"] if how == "balance" else [])]
                command = jobs.train(*flags, __file__, "train", str(file), *words)
                process = bed.start("h0", groups[0].inside([*together, *command]), folder / "log")
                if process.wait(_SECONDS):
                    sys.exit((folder / "log").read_text())
                found[how] = json.loads(file.read_text())
            equal, balance = found["equal"], found["balance"]
            ratios.append(balance["rate"] / equal["rate"])
            changes = [step for step in range(1, _STEPS) if balance["sizes"][step] != balance["sizes"][step - 1]]
            print(
                f"{equal['rate']:.1f} and {balance['rate']:.1f} samples/s, {ratios[-1]:.2f} times as fast; h0 computes "
                f"{balance['sizes'][-1]} of {_PER_STEP}, changed at {changes}; last losses {equal['loss']:.7g} and "
                f"{balance['loss']:.7g}",
                flush=True,
            )
    print(f"median {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2], "bfloat16" in sys.argv)
    else:
        main()
