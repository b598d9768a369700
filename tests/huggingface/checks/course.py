"""Trains a small BERT classifier by Trainer alone and writes what happened: run by the ranks of a test.

Knows nothing of cpudist, except where the first word is --init: then it is started without cpudist-train. With
--dropout as the first word, the losses depend on each rank's random numbers.
"""

import json
import os
import sys

if sys.argv[1] == "--init":
    sys.argv.pop(1)
    import cpudist

    cpudist.init()

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

dropout = 0.1 if sys.argv[1] == "--dropout" else 0.0
if dropout:
    sys.argv.pop(1)
words = ["--do_train", "--report_to", "none", "--disable_tqdm", "true", "--seed", "3", "--logging_steps", "1"]
(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*words, *sys.argv[1:]])

torch.manual_seed(0)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(
    BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
)
generator = torch.Generator().manual_seed(0)
tokens = torch.randint(4, 64, (255, 16), generator=generator)
labels = (tokens[:, 0] > 33).long()
samples = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def accuracy(gathered):
    assert len(gathered.predictions) == len(gathered.label_ids) == 51, "repeated samples are dropped"
    return {"accuracy": float((gathered.predictions.argmax(1) == gathered.label_ids).mean())}


data = {"train_dataset": samples[:204], "eval_dataset": samples[204:]}
trainer = Trainer(model=model, args=arguments, compute_metrics=accuracy, **data)
trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
metrics = trainer.evaluate()
parameters = {name: value.double().sum().item() for name, value in model.state_dict().items()}
everyones = [None] * dist.get_world_size()
dist.all_gather_object(everyones, parameters)
assert all(one == parameters for one in everyones), "the ranks have trained apart"
trainer.save_model(arguments.output_dir)  # on all ranks: on XLA they wait for each other in it
if trainer.is_world_process_zero():
    found = {
        "backend": dist.get_backend(),
        "wrapped": type(trainer.model_wrapped).__name__,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "rates": [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry],
        "metrics": metrics,
        "best": trainer.state.best_metric,
        "checkpoint": trainer.state.best_model_checkpoint,
        "parameters": parameters,
        "torch_xla": "torch_xla" in sys.modules,
        "threads": torch.get_num_threads(),
        "told": os.environ.get("OMP_NUM_THREADS"),
        "timeout": arguments.ddp_timeout,
    }
    with open(f"{arguments.output_dir}/found.json", "w") as file:
        json.dump(found, file)
