"""Measures how much of a training step runs on one thread, and what that means for ranks with many cores.

    OMP_WAIT_POLICY=passive python benchmarks/serial_share.py [MODEL...] [--quick]

Two threads compute. The CPU time of the main thread less that of its helper is work that one thread did alone; twice
the helper's is work that both shared. CPU time is not disturbed by other programs, so any machine with two cores
will do. The serial part is the median of all steps, with its error. By Amdahl's law a step at N threads takes
serial + divided / N, where memory is not the limit. LD_PRELOAD=libtcmalloc_minimal.so.4 measures with the allocator
that cpudist-train preloads.

Each model is measured as PyTorch trains it, with the fused AdamW and clipped gradients (Trainer's default), and after
`cpudist.optimize`, in float32 and in bfloat16 (PyTorch's by autocast), in turns. Below, the operators with more than
1 % of the divided time on one thread.
"""

import argparse
import importlib.util
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cpudist

THREADS = (8, 16, 32, 56)
STEPS = 5  # in a round, after two to warm up


def bert() -> tuple[Any, dict[str, torch.Tensor]]:
    """Two layers of bert-large on question answering, 4 x 384 tokens, as Hugging Face's guide trains it."""
    from transformers import BertConfig, BertForQuestionAnswering

    size = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    ids, at = torch.randint(30522, (4, 384)), torch.randint(384, (4,))
    batch = {"input_ids": ids, "start_positions": at, "end_positions": at}
    return BertForQuestionAnswering(BertConfig(num_hidden_layers=2, **size)), batch


def gpt2() -> tuple[Any, dict[str, torch.Tensor]]:
    """Two layers of GPT-2, 2 x 512 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(50257, (2, 512))
    return GPT2LMHeadModel(GPT2Config(n_layer=2)), {"input_ids": ids, "labels": ids}


def vit() -> tuple[Any, dict[str, torch.Tensor]]:
    """Two layers of ViT, 8 images."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_hidden_layers=2, num_labels=100)), _images()


def resnet() -> tuple[Any, dict[str, torch.Tensor]]:
    """ResNet-50 with two blocks in each stage, 8 images."""
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(depths=[2, 2, 2, 2], num_labels=100)), _images()


def lora() -> tuple[Any, dict[str, torch.Tensor]]:
    """Two small layers of Llama with LoRA's adapters, 2 x 384 tokens."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
    ids = torch.randint(32000, (2, 384))
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **size))
    adapters = LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    return get_peft_model(model, adapters), {"input_ids": ids, "labels": ids}


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(8, 3, 224, 224), "labels": torch.randint(100, (8,))}


MODELS = {function.__name__: function for function in (bert, gpt2, vit, resnet, lora)}


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the seconds on one thread by operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.serial: defaultdict[str, float] = defaultdict(float)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = cpu()
        result = function(*args, **(kwargs or {}))
        self.serial[str(function)] += work(before, cpu())[0]
        return result


def cpu() -> tuple[float, float]:
    """Return the CPU seconds of this thread and of all others."""
    own = time.thread_time()
    return own, time.process_time() - own


def work(before: tuple[float, float], after: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds of work between two times that one thread did, and those that both divided."""
    own, others = after[0] - before[0], after[1] - before[1]
    return own - others, 2 * others


def make_step(model: str, dtype: torch.dtype, optimize: bool) -> Callable[[], None]:
    """Return a training step of a model of its own."""
    torch.manual_seed(0)
    made, batch = MODELS[model]()
    made.train()
    optimizer: Any = torch.optim.AdamW([p for p in made.parameters() if p.requires_grad], lr=1e-5, fused=True)
    autocast: Any = nullcontext()
    if optimize:
        made, optimizer = cpudist.optimize(made, optimizer, dtype)
    elif dtype is torch.bfloat16:
        autocast = torch.autocast("cpu", dtype)

    def step() -> None:
        with autocast:
            loss = made(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(model: str, dtype: torch.dtype, rounds: int) -> None:
    """Print a row of PyTorch's step and one of the optimized step, measured in turns."""
    shares: dict[str, list[tuple[float, float]]] = {"PyTorch": [], "optimize": []}
    operators = {name: Operators() for name in shares}
    for _ in range(rounds):
        for name, found in shares.items():
            cpudist.init("gloo")  # what `optimize` replaces is undone at the end of a job
            step = make_step(model, dtype, name == "optimize")
            for _ in range(2):
                step()
            for _ in range(STEPS):
                before = cpu()
                step()
                found.append(work(before, cpu()))
            with operators[name]:
                step()
            cpudist.shutdown()
    for name, found in shares.items():
        serial, divided = (statistics.median(part) for part in zip(*found, strict=True))
        gains = " | ".join(f"{(serial + divided) / (serial + divided / threads):.1f}" for threads in THREADS)
        error = statistics.stdev(part[0] for part in found) / len(found) ** 0.5
        label = f"{model}, {name}, {str(dtype)[6:]}"
        print(f"| {label} | {serial:.3f} ± {error:.3f} | {divided:.2f} | {gains} |", flush=True)
        for operator, seconds in sorted(operators[name].serial.items(), key=lambda item: -item[1]):
            if seconds / rounds > 0.01 * divided:
                print(f"    {operator}: {seconds / rounds * 1e3:.0f} ms", flush=True)


def main() -> None:
    """Measure the models that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="one round instead of three")
    options = parser.parse_args()
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.set_num_threads(2)
    present = [name for name in MODELS if name != "lora" or importlib.util.find_spec("peft")]
    print("| times one thread's speed | serial, s | divided, s | " + " | ".join(f"{n} threads" for n in THREADS) + " |")
    print("|---" * (3 + len(THREADS)) + "|", flush=True)
    for model in options.models or present:
        for dtype in (torch.float32, torch.bfloat16):
            measure(model, dtype, 1 if options.quick else 3)


if __name__ == "__main__":
    main()
