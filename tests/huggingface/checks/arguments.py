"""Fills TrainingArguments, under cpudist-train ("every_way") or without it: FOLDER, and what to check."""

import json
import runpy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

# The first import of all: transformers 5 then imports torch in the middle of training_args.
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments  # isort: skip

import torch.distributed as dist

from cpudist import job

FOLDER, CHECK = Path(sys.argv[1]), sys.argv[2]
FLAGS = {
    "output_dir": str(FOLDER / "out"),
    "ddp_backend": "ccl",
    "use_ipex": True,
    "own_operators": False,
    "no_cuda": True,
    "bf16": True,
    "max_steps": 20,
    "learning_rate": 1e-2,
    "report_to": "none",
    "save_strategy": "no",
    "ddp_timeout": 77,
    "disable_tqdm": "true",  # the only one here that takes no bare flag
}
FILE = FOLDER / "flags.json"


@dataclass
class OwnArguments(Seq2SeqTrainingArguments):
    extra: int = 3


def as_words():
    for name, value in FLAGS.items():
        yield f"--{name}"
        if value is not True:
            yield str(value)


def filled(kind):
    parser = HfArgumentParser(kind)
    yield kind(**FLAGS)
    yield parser.parse_args_into_dataclasses(list(as_words()))[0]
    yield parser.parse_dict(dict(FLAGS))[0]
    yield parser.parse_json_file(str(FILE))[0]
    yield parser.parse_yaml_file(str(FILE))[0]  # JSON is YAML
    yield replace(kind(**FLAGS), seed=1)


def every_way():
    """Fill them in every way that scripts do, and train once."""
    if dist.get_rank() == 0:
        FILE.write_text(json.dumps(FLAGS))
    dist.barrier()
    for kind in (TrainingArguments, Seq2SeqTrainingArguments, OwnArguments):
        for arguments in filled(kind):
            for name in ("ddp_backend", "use_ipex", "own_operators", "no_cuda", "bf16", "max_steps", "ddp_timeout"):
                assert getattr(arguments, name) == FLAGS[name], name
            assert arguments.use_cpu
            assert arguments.to_dict()["use_ipex"] is True
    default = TrainingArguments("out", report_to="none")
    assert (default.use_ipex, default.own_operators, hasattr(default, "extra")) == (False, True, False)

    sys.argv = ["course.py", *as_words()]
    found = runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
    if dist.get_rank() == 0:
        wrapped, arguments = found["trainer"].model_wrapped, found["arguments"]
        assert wrapped.gradient_as_bucket_view
        assert wrapped.bucket_bytes_cap == 100 << 20, "no core to spare for a thread that would overlap smaller buckets"
        kind, xla = type(wrapped).__name__, "torch_xla" in sys.modules
        print(kind, dist.get_backend(), arguments.world_size, arguments.device, xla)


def inert():
    arguments = TrainingArguments(str(FOLDER), ddp_backend="gloo", use_cpu=True, report_to="none")
    assert arguments.ddp_timeout == 1800
    assert arguments.world_size == 2
    assert job.current() is None
    print(f"no job on {dist.get_backend()}", flush=True)  # one write, which the other rank's cannot part


def refused():
    TrainingArguments(str(FOLDER), use_ipex=True)


def starts():
    (own,) = HfArgumentParser(OwnArguments).parse_json_file(str(FILE))
    running = job.current()
    assert running is not None
    assert (own.use_ipex, own.no_cuda, own.use_cpu, own.extra, own.ddp_timeout) == (True, True, True, 4, 300)
    assert (own.world_size, own.local_rank, dist.get_backend()) == (2, running.world.local_rank, "ccl")
    again = TrainingArguments(str(FOLDER), ddp_backend="ccl", use_ipex=True, no_cuda=True)
    assert job.current() is running
    print(json.dumps(again.to_dict()["use_ipex"]) + "\n", end="", flush=True)  # at once: torchrun starts `python -u`
    dist.barrier()  # both have written
    if running.world.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    dist.barrier()


if CHECK != "every_way":
    assert job.current() is None, "imports start nothing"
globals()[CHECK]()
