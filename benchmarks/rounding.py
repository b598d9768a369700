"""Measure how far the losses of 2 and 3 ranks differ from those of one, and of torchrun, on the same global batches.

    python benchmarks/rounding.py [--steps 300]

A small transformer without dropout trains under `cpudist-train`, and under torchrun with gloo. Differences that come
from rounding are smaller in float64 by the ratio of the two formats' precision, about 5e8.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

_BATCH, _TOKENS, _WORDS, _WIDTH = 12, 32, 100, 64
_SHOWN = (1, 10, 100, 300)  # the steps whose losses are printed
_LAUNCHERS = {
    "cpudist": ["mpirun", "-n", "{}", "cpudist-train", "--no-pin"],
    "torchrun": ["torchrun", "--standalone", "--nproc-per-node", "{}"],
}


def train(steps: int, dtype: torch.dtype) -> list[float]:
    """Train on this rank's share of each batch, and return the mean losses of all ranks."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0, batch_first=True, dtype=dtype)
    embedding, head = torch.nn.Embedding(_WORDS, _WIDTH, dtype=dtype), torch.nn.Linear(_WIDTH, _WORDS, dtype=dtype)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(embedding, layer, head))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        words = torch.randint(_WORDS, (_BATCH, _TOKENS))
        mine = words.chunk(dist.get_world_size())[dist.get_rank()]
        loss = torch.nn.functional.cross_entropy(model(mine).flatten(0, 1), mine.cumsum(1).flatten() % _WORDS)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def main() -> None:
    """Print relative differences; in a rank, write the losses to the file that is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.output:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        losses = {str(dtype)[6:]: train(options.steps, dtype) for dtype in (torch.float32, torch.float64)}
        if dist.get_rank() == 0:
            torch.save(losses, options.output)
        dist.destroy_process_group()
        return
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, launcher in _LAUNCHERS.items():
            for ranks in (1, 2, 3):
                output = Path(folder, f"{name}-{ranks}")
                words = [word.format(ranks) for word in launcher]
                words += [__file__, "--steps", str(options.steps), "--output", str(output)]
                subprocess.run(words, check=True, timeout=1000, stdout=sys.stderr)
                runs[name, ranks] = torch.load(output)
    shown = [step for step in _SHOWN if step <= options.steps]
    print(" " * 18 + "".join(f"step {step:<7}" for step in shown) + "largest     torchrun's bit for bit")
    for dtype, one in runs["cpudist", 1].items():
        for ranks in (2, 3):
            losses, torchruns = runs["cpudist", ranks][dtype], runs["torchrun", ranks][dtype]
            relative = [abs(loss / other - 1) for loss, other in zip(losses, one, strict=True)]
            columns = "".join(f"{value:<12.1e}" for value in [*(relative[step - 1] for step in shown), max(relative)])
            equal = sum(loss == other for loss, other in zip(losses, torchruns, strict=True))
            print(f"{dtype}, {ranks} ranks".ljust(18) + columns + f"{equal} of {options.steps}")


if __name__ == "__main__":
    main()
