"""Trainer on two ranks that believe to be on a host each, with a model whose embedding and output layer share a weight.

Trains with the embedding's part of the gradient as rows, then with it as a whole; both trainings must end alike. Knows
cpudist only to pretend that there are hosts, and to count rows.
"""

from dataclasses import replace

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForMaskedLM, HfArgumentParser, Trainer, TrainingArguments

from cpudist import job
from cpudist.backends import embedding_rows

running = job.require()
running.world = replace(running.world, node_rank=running.world.rank, node_count=2)
running.communication.world = running.world
generator = torch.Generator().manual_seed(0)
tokens = torch.randint(1, 256, (64, 8), generator=generator)
samples = [{"input_ids": row, "labels": row} for row in tokens]
sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
added = []
add = embedding_rows._Rows.add


def count(self, module, numbers, *rest):
    added.append(len(numbers))
    add(self, module, numbers, *rest)


def train():
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(vocab_size=256, max_position_embeddings=16, **sizes, **calm))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    Trainer(model=model, args=arguments, train_dataset=samples).train()
    found = [None] * 2
    dist.all_gather_object(found, [parameter.detach().double().sum().item() for parameter in model.parameters()])
    assert found[0] == found[1], "ranks differ"
    return model


embedding_rows._Rows.add = count
rows = train()
assert len(added) == 4, "one batch of each step is averaged"
embedding_rows._MOST_ROWS = 0.0
whole = train()
assert len(added) == 4
torch.testing.assert_close(list(rows.parameters()), list(whole.parameters()))
