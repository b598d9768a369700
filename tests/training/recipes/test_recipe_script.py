"""The options of recipes, from the command line and from files; losses that do not depend on batches."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from cpudist.checkpoints import manifest
from cpudist.checkpoints.rank_group import Ranks
from cpudist.errors import UserError
from cpudist.training.recipes import models
from cpudist.training.recipes.clm import DataArguments, next_token_losses
from cpudist.training.recipes.language_modeling import ModelArguments
from cpudist.training.recipes.models import IGNORED, ExactTrainer, mean_loss
from cpudist.training.recipes.script import begin, parse

pytestmark = pytest.mark.versions


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


def _parse(words: list[str]) -> tuple[Any, ...]:
    return parse("clm", "", words, ModelArguments, DataArguments)


def test_options_from_the_command_line_and_from_files(tmp_path: Path) -> None:
    words = ["--train_file", "a", "b", "--block-size", "32", "--output_dir", "o", "--use_cpu", "--max_steps", "3"]
    _, data, training = _parse(words)
    assert (data.train_file, data.block_size, training.max_steps) == (["a", "b"], 32, 3)

    path = tmp_path / "options.yaml"
    path.write_text("train_file: [a, b]\nblock_size: 32\noutput_dir: o\nuse_cpu: true\nmax_steps: 3\n")
    assert _parse([str(path)])[1] == data
    path.write_text("train_file: a\noutput_dir: o\nuse_cpu: true\n")
    assert _parse([str(path)])[1].train_file == ["a"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--no_such_option", "1"], "cpudist-train clm does not know --no_such_option 1"),
        (["--max_steps", "many"], "max_steps"),
        (["missing.json"], "missing.json"),
        (["--fp16", "--bf16", "--use_cpu"], "fp16 and bf16"),
        (["--max_train_samples", "0"], "--max_train_samples must be 1 or more"),
        (["--validation_split_percentage", "100"], "--validation_split_percentage must lie between"),
    ],
)
def test_wrong_options_are_user_errors(words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        _parse(words)


def test_checkpoints_are_resumed_from_or_left_alone(arguments: TrainingArguments) -> None:
    options = DataArguments(train_file=["text.txt"])
    assert begin(options, arguments) is None
    checkpoint = Path(arguments.output_dir) / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    assert begin(options, arguments) is None, "what has no state was not saved to its end"
    (checkpoint / "trainer_state.json").touch()
    with pytest.raises(UserError, match="--resume_from_checkpoint last"):
        begin(options, arguments)
    arguments.resume_from_checkpoint = "last"
    assert begin(options, arguments) == str(checkpoint)
    newer = checkpoint.with_name("checkpoint-6")
    newer.mkdir()
    (newer / "trainer_state.json").touch()
    manifest.seal(newer, 6, 1, [])
    assert begin(options, arguments) == str(newer)
    newest = newer.rename(checkpoint.with_name("checkpoint-7"))
    for damaged in ("trainer_state.json", "checkpoint.json"):
        (newest / damaged).write_text("{")
        assert begin(options, arguments) == str(checkpoint)
    shutil.rmtree(checkpoint)
    with pytest.raises(UserError, match=r"no checkpoint in .* is whole"):
        begin(options, arguments)
    arguments.resume_from_checkpoint = "elsewhere"
    with pytest.raises(UserError, match="no checkpoint elsewhere"):
        begin(options, arguments)
    arguments.do_train = False
    with pytest.raises(UserError, match="--do_train"):
        begin(options, arguments)


@pytest.mark.parametrize(
    ("seen", "part"), [([{2}, {4}], "ranks see different ones"), ([{2}, set()], "rank 1 sees none")]
)
def test_hosts_without_a_checkpoint_in_common_are_a_user_error(
    arguments: TrainingArguments, monkeypatch: pytest.MonkeyPatch, seen: list[set[int]], part: str
) -> None:
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: seen)
    with pytest.raises(UserError, match=part):
        begin(DataArguments(train_file=["text.txt"]), arguments)


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


@pytest.mark.parametrize("shape", [(6,), (2, 5)])
def test_the_loss_and_its_gradient_are_the_same_where_shapes_are_fixed(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(*shape, 7, requires_grad=True), torch.randint(7, shape)
    if len(shape) > 1:
        labels[0, 1:] = IGNORED
    losses, gradients = [], []
    for fixed in (False, True):
        monkeypatch.setattr(models, "needs_fixed_shapes", lambda fixed=fixed: fixed)
        losses.append(mean_loss(SequenceClassifierOutput(logits=logits), labels, label_smoothing=0.1))
        gradients += torch.autograd.grad(losses[-1], logits)
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


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
