"""Losses of steps and of evaluations: the same however samples are spread over batches."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from cpudist.training.recipes.clm import next_token_losses
from cpudist.training.recipes.trainer import IGNORED, ExactTrainer, mean_loss


def test_evaluation_loss_does_not_depend_on_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=16))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(16, (7, 8))]
    losses = []
    for batch_size in (1, 3, 7):
        options = TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=batch_size, report_to=[])
        losses.append(
            ExactTrainer(score=next_token_losses, model=model, args=options, eval_dataset=data).evaluate()["eval_loss"]
        )
    rows = torch.stack([entry["input_ids"] for entry in data])
    with torch.no_grad():
        expected = model.eval()(rows, labels=rows).loss.item()
    assert losses == pytest.approx([expected] * 3, rel=1e-6)
    assert not math.isnan(expected)


@settings(deadline=None)
@given(st.integers(0, 2**16), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_parts_of_the_loss_add_up(seed: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn(size, 5, 7, generator=generator) for size in sizes]
    labels = [torch.randint(7, (size, 5), generator=generator) for size in sizes]
    for part in labels:
        part[torch.rand(part.shape, generator=generator) < 0.7] = IGNORED
    count = sum((part != IGNORED).sum() for part in labels)
    outputs = [type("Outputs", (), {"logits": part}) for part in logits]
    parts = sum(mean_loss(one, part, count) for one, part in zip(outputs, labels, strict=True))
    if count == 0:
        assert parts == 0
    else:
        whole = torch.nn.functional.cross_entropy(torch.cat(logits).flatten(0, 1), torch.cat(labels).flatten())
        assert float(parts) == pytest.approx(float(whole), rel=1e-5)


def test_the_loss_of_a_step_is_the_mean_over_its_samples() -> None:
    logits, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1)
    loss = partial(mean_loss, label_smoothing=0.1)
    parts = [
        loss(SequenceClassifierOutput(logits=logits[part]), target[part], num_items_in_batch=6)
        for part in (slice(0, 5), slice(5, 6))
    ]
    torch.testing.assert_close(sum(parts), expected)
    torch.testing.assert_close(loss(SequenceClassifierOutput(logits=logits), target), expected)
