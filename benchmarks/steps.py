"""Compare training steps of four models in bfloat16: PyTorch, `cpudist.optimize`, and that with PyTorch's operators.

    OMP_NUM_THREADS=1 python benchmarks/steps.py [--quick] [MODEL...]

A step is forward, backward and AdamW with random tokens and dropout, in one process. Candidates take turns. Times are
the process's processor time divided by its threads, so other programs on the machine disturb them little. "small" is a
BERT of 24 million parameters; "mlm" and "small" have labels on 15 % of the tokens. "factors copied" changes what
`optimize` chooses: linear layers copy the transposed factor of the weight's gradient where the CPU has no AMX, and do
not where it has. Start it with LD_PRELOAD=libtcmalloc_minimal.so.4 to measure with the allocator that cpudist-train
preloads.
"""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, GPT2Config, GPT2LMHeadModel
from usage import asked

import cpudist
from cpudist.bench.report import ratio_cell, table, time_cell
from cpudist.bench.timing import Candidate, Turns, ratio, take_turns
from cpudist.optimization import operators

QUICK = "--quick" in sys.argv
LARGE = {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "intermediate_size": 4096}
SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, int]]] = {
    "qa": (lambda: BertForQuestionAnswering(BertConfig(**LARGE)), (4, 384)),
    "mlm": (lambda: BertForMaskedLM(BertConfig(**LARGE)), (4, 384)),
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(n_layer=3)), (2, 512)),
    "small": (lambda: BertForMaskedLM(BertConfig(**SMALL)), (4, 128)),
}
TORCHS, OPTIMIZED, OWN, OTHER = "autocast, fused AdamW", "optimize, PyTorch's operators", "optimize", "factors copied"


def batch(name: str, vocabulary: int, shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Make a batch of random tokens with labels."""
    tokens = torch.randint(vocabulary, shape)
    if name == "qa":
        starts = torch.randint(shape[1], (2, shape[0]))
        return {"input_ids": tokens, "start_positions": starts[0], "end_positions": starts[1]}
    labels = tokens if name == "gpt2" else tokens.masked_fill(torch.rand(shape) > 0.15, -100)
    return {"input_ids": tokens, "labels": labels}


def candidate(name: str, how: str) -> Candidate:
    """Return a candidate whose calls are steps of a model of its own."""
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    copies = torch.cpu._is_amx_tile_supported() is not (how == OTHER)
    operators._copies = lambda: copies
    if how != TORCHS:
        cpudist.optimize(model, optimizer, torch.bfloat16, ipex=False, own_operators=how != OPTIMIZED)
    inputs = batch(name, model.config.vocab_size, (2, 32) if QUICK else shape)

    def step() -> float:
        operators._copies = lambda: copies
        begin = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=how == TORCHS):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return (time.process_time() - begin) / torch.get_num_threads()

    return lambda calls: [step() for _ in range(calls)]


def main() -> None:
    """Let the candidates of each model take turns, and print a table."""
    cpudist.init("gloo", pin=False)
    turns = Turns(rounds=1, calls=1, warm_up=0) if QUICK else Turns(rounds=5, calls=1, warm_up=1)
    for name in [model for model in MODELS if model in sys.argv] or MODELS:
        candidates = {how: candidate(name, how) for how in (OPTIMIZED, TORCHS, OWN, OTHER)}
        timings = take_turns(candidates, turns)
        first, tokens = timings[OPTIMIZED], math.prod(MODELS[name][1])
        rows = [
            [how, time_cell(one), ratio_cell(ratio(one, first)), f"{tokens / one.median / torch.get_num_threads():.0f}"]
            for how, one in timings.items()
        ]
        title = f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads"
        print(table([title, "processor time", "times the first", "tokens/s a core"], rows), end="\n\n", flush=True)


if __name__ == "__main__":
    asked(__doc__)
    main()
