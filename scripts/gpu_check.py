"""Parts of scripts/xla_gpu.sh, each a job of one rank: product | steps DTYPE | load FOLDER FOLDER; compare is none."""

import re
import sys
import time
from pathlib import Path

import torch

import cpudist

VOCABULARY, WIDTH, LENGTH, BATCH, STEPS = 256, 128, 64, 16, 20


def product() -> None:
    """Compare a product with the CPU's."""
    world = cpudist.init()
    left, right = torch.randn(2, 512, 512).unbind()
    error = (left.to(world.device) @ right.to(world.device)).cpu() - left @ right
    largest = error.abs().max().item()
    print(f"{world.backend} on {world.device}, product of 512 x 512: largest difference from the CPU's {largest:.1e}")
    if largest > 1e-3:
        sys.exit("the product is wrong")


def steps(dtype: str) -> None:
    """Train a small transformer on this file's bytes, and print the losses and the time of a step."""
    world = cpudist.init()
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    layers = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, VOCABULARY)).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = cpudist.optimize(model, optimizer, dtype=getattr(torch, dtype))
    model = cpudist.wrap(model)
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(0, len(text) - LENGTH - 1, (STEPS, BATCH), generator=torch.Generator().manual_seed(0))
    batches = [torch.stack([text[start : start + LENGTH + 1] for start in row]) for row in starts.tolist()]
    begin = time.perf_counter()
    for number, batch in enumerate(cpudist.batches(batches)):
        output = model(batch[:, :-1]).reshape(-1, VOCABULARY)
        loss = torch.nn.functional.cross_entropy(output, batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        cpudist.step(optimizer)
        print(f"step {number} loss {loss.item():.6f}", flush=True)
    print(f"{STEPS} steps in {time.perf_counter() - begin:.1f} s on {world.device}, last loss {loss.item():.4f}")


def load(*folders: str) -> None:
    """Load what examples/one_program.py has saved in two folders, and compare the parameters."""
    found = []
    world = cpudist.init()
    for folder in folders:
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        cpudist.load(folder, model=model, optimizer=optimizer)
        found.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
    difference = (found[0] - found[1]).abs().max()
    print(f"loaded on {world.backend}: largest difference of a parameter {difference:.1e}")
    if difference > 1e-4:
        sys.exit("the checkpoints differ")


def compare(tolerance: str, *logs: str) -> None:
    """Compare the losses in two outputs."""
    pattern = re.compile(r"loss'?:? '?(\d[\d.]*)")
    ours, theirs = ([float(text) for text in pattern.findall(Path(log).read_text())] for log in logs)
    difference = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    print(f"{len(ours)} losses, {ours[0]:.4f} to {ours[-1]:.4f}; largest difference {difference:.1e}")
    if difference > float(tolerance):
        sys.exit(f"they differ by more than {tolerance}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    cpudist.shutdown()
