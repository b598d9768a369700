"""Fine-tunes a pretrained model to answer questions as the guides' run_qa.py does: with Trainer alone.

Writes losses, the backend and how many of the questions it answers exactly to OUTPUT_DIR/found.json.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataArguments:
    model_name_or_path: str
    train_file: str


options, arguments = HfArgumentParser((DataArguments, TrainingArguments)).parse_args_into_dataclasses()
set_seed(arguments.seed)
tokenizer = AutoTokenizer.from_pretrained(options.model_name_or_path)
model = AutoModelForQuestionAnswering.from_pretrained(options.model_name_or_path)

samples, texts = [], []
for article in json.loads(Path(options.train_file).read_text())["data"]:
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            for answer in question["answers"][:1]:
                context, first = paragraph["context"], answer["answer_start"]
                words = tokenizer(question["question"], context, padding="max_length", truncation=True, max_length=96)
                last = first + len(answer["text"]) - 1
                words["start_positions"] = words.char_to_token(0, first, sequence_index=1)
                words["end_positions"] = words.char_to_token(0, last, sequence_index=1)
                samples.append({name: torch.tensor(value) for name, value in words.items()})
                texts.append(answer["text"])

trainer = Trainer(model=model, args=arguments, train_dataset=samples, eval_dataset=samples)
trainer.train()
start, end = (logits.argmax(1) for logits in trainer.predict(samples).predictions)
right = sum(
    int(int(one["start_positions"]) == first and int(one["end_positions"]) == last)
    for one, first, last in zip(samples, start, end, strict=True)
)
if trainer.is_world_process_zero():
    found = {
        "backend": dist.get_backend(),
        "ranks": dist.get_world_size(),
        "threads": torch.get_num_threads(),
        "told": os.environ.get("OMP_NUM_THREADS"),
        "timeout": arguments.ddp_timeout,
        "use_cpu": arguments.use_cpu,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "questions": len(samples),
        "right": right,
    }
    Path(arguments.output_dir, "found.json").write_text(json.dumps(found))
