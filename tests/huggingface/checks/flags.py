"""Fills TrainingArguments in every way that scripts do, and trains once: run by the ranks of a test."""

import json
import runpy
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch.distributed as dist
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments

FOLDER = Path(sys.argv[1])
FLAGS = {
    "output_dir": str(FOLDER / "out"),
    "ddp_backend": "ccl",
    "use_ipex": True,
    "parallel_dropout": False,
    "no_cuda": True,
    "bf16": True,
    "max_steps": 20,
    "learning_rate": 1e-2,
    "report_to": "none",
    "save_strategy": "no",
    "ddp_timeout": 77,
    "disable_tqdm": "true",  # the only one here that takes no bare flag
}


@dataclass
class OwnArguments(Seq2SeqTrainingArguments):
    extra: int = field(default=3)


def as_words():
    for name, value in FLAGS.items():
        yield f"--{name}"
        if value is not True:
            yield str(value)


def every_way(kind):
    parser = HfArgumentParser(kind)
    yield kind(**FLAGS)
    yield parser.parse_args_into_dataclasses(list(as_words()))[0]
    yield parser.parse_dict(dict(FLAGS))[0]
    yield parser.parse_json_file(str(FOLDER / "flags.json"))[0]
    yield parser.parse_yaml_file(str(FOLDER / "flags.json"))[0]  # JSON is YAML
    yield replace(kind(**FLAGS), seed=1)


if dist.get_rank() == 0:
    (FOLDER / "flags.json").write_text(json.dumps(FLAGS))
dist.barrier()
for kind in (TrainingArguments, Seq2SeqTrainingArguments, OwnArguments):
    for arguments in every_way(kind):
        for name in ("ddp_backend", "use_ipex", "parallel_dropout", "no_cuda", "bf16", "max_steps", "ddp_timeout"):
            assert getattr(arguments, name) == FLAGS[name], name
        assert arguments.use_cpu
        assert arguments.to_dict()["use_ipex"] is True
default = TrainingArguments("out", report_to="none")
assert (default.use_ipex, default.parallel_dropout, hasattr(default, "extra")) == (False, True, False)

sys.argv = ["course.py", *as_words()]
found = runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
if dist.get_rank() == 0:
    wrapped, arguments = found["trainer"].model_wrapped, found["arguments"]
    assert wrapped.gradient_as_bucket_view
    assert wrapped.bucket_bytes_cap == 100 << 20, "no core to spare for a thread that would overlap smaller buckets"
    print(
        type(wrapped).__name__, dist.get_backend(), arguments.world_size, arguments.device, "torch_xla" in sys.modules
    )
