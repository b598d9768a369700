"""Trainer on two ranks that believe to be on a host each and exchange after every third step: TrainingArguments.

Trains to the end, then once more from the first checkpoint; both trainings must end with the same bits. Knows cpudist
only to pretend that there are hosts.
"""

import sys
from dataclasses import replace

import torch
import torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, HfArgumentParser, Trainer, TrainingArguments

from cpudist import job
from cpudist.optimization import local_steps

running = job.require()
running.world = replace(running.world, node_rank=running.world.rank, node_count=2, local_rank=0, local_size=1)
running.communication.world = running.world
generator = torch.Generator().manual_seed(0)
tokens = torch.randint(4, 64, (64, 16), generator=generator)
samples = [{"input_ids": row, "labels": (row[0] > 33).long()} for row in tokens]
sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


class Apart(Trainer):
    """Notes after which steps ranks have other parameters than the other one."""

    def training_step(self, *args, **kwargs):
        if not parted or parted[-1][0] != self.state.global_step:
            parted.append((self.state.global_step, len(on_all_ranks(self.model)) > 1))
        return super().training_step(*args, **kwargs)


def on_all_ranks(model):
    found = [None] * 2
    dist.all_gather_object(found, sum(parameter.detach().double().sum().item() for parameter in model.parameters()))
    return set(found)


def train(**options):
    torch.manual_seed(running.world.rank)  # rank 0's parameters are everyone's
    model = BertForSequenceClassification(BertConfig(vocab_size=64, max_position_embeddings=32, **sizes))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    trainer = Apart(model=model, args=arguments, train_dataset=samples, eval_dataset=samples[:8])
    trainer.train(**options)
    assert len(on_all_ranks(model)) == 1, "all ranks end with the same"
    return trainer


parted = []
first = train()
# Exchanges begin after 3 and 7, and end after 4 and 8; evaluations after 4 and 8, and the checkpoint after 4, are more.
assert [step for step, apart in parted if not apart] == [0, 4, 8], parted
assert local_steps.of(first.model).rounds.every == 3
parted.clear()
again = train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-4")
assert [step for step, apart in parted if not apart] == [4, 8], parted
pairs = zip(first.model.parameters(), again.model.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in pairs), "as if nothing had been"
assert not first.args.average_tokens_across_devices
if running.world.rank == 0:
    print(f"passed: {sys.argv[-1]}")
