"""A training in drawn settings has the losses, metrics and checkpoints of plain Trainer in one process.

A setting is the number of its test: `pytest tests/huggingface/test_oracle.py -k "[17]"`. `--long` tries 200 of them.
"""

import json
import random
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from ranks import fork_ranks
from torch.nn.functional import cross_entropy
from torch.utils.data import SequentialSampler
from transformers import (
    BertConfig,
    BertForTokenClassification,
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import cpudist
from cpudist import job
from cpudist.huggingface import add_callbacks
from cpudist.optimization import padding

pytestmark = [pytest.mark.job, pytest.mark.versions]

_KINDS, _TOKENS = 12, 6
_SHORT = {0, 1, *range(3, 12), 35}  # 35 evaluates by a function of the user's that its training accumulates
_SIZES = {"vocab_size": _KINDS, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
_SIZES |= {"num_attention_heads": 2, "max_position_embeddings": 8}
_NOT_COMPARED = ("runtime", "per_second", "flos", "epoch")  # an epoch's fraction is counted in batches


class Setting:
    """What a number draws; batches are those of one rank."""

    def __init__(self, number: int) -> None:
        draw = random.Random(number)
        self.ranks, self.batch, self.accumulation = draw.choice((1, 2, 2, 3)), draw.randint(1, 3), draw.randint(1, 4)
        self.model = draw.choice(("counts", "ignores", "without"))
        self.loss = draw.choice(("own", "own", "mean", "counted"))
        if self.model != "without" and draw.random() < 0.2:
            self.loss = "smoothed"
        self.averages, self.drops_last = draw.random() < 0.7, draw.random() < 0.3
        self.eval_batch = draw.randint(1, 3)
        row = self.ranks * self.batch
        # One rank does not fill up its last batch, whose mean would then have a larger weight.
        self.size = draw.randrange(row, 4 * row * self.accumulation + 1, self.batch if self.ranks == 1 else 1)
        self.eval_row = self.ranks * self.eval_batch
        self.eval_size = draw.choice((draw.randint(self.eval_row, 14), self.eval_row * draw.randint(1, 3)))
        self.uneven = self.ranks > 1 and self.eval_size % self.eval_row > 0 and not self.drops_last
        # Means over batches with different numbers of targets differ between one rank and two.
        exact = self.loss == "counted" or (self.loss, self.model) == ("own", "counts")
        self.masks = exact and not self.uneven and (self.averages or self.ranks == 1) and draw.random() < 0.7
        self.arguments = {
            "eval_on_start": draw.random() < 0.3,
            "eval_steps": (steps := draw.choice((1, 2, 3))),
            "save_steps": steps,
            "save_total_limit": draw.choice((None, 1, 2)),
            "load_best_model_at_end": (best := draw.random() < 0.7),
            "metric_for_best_model": "loss" if draw.random() < 0.6 and not self.uneven else "right",
            "logging_steps": draw.choice((1, 1, 3)),
            "learning_rate": draw.choice((0.0, 3e-3, 3e-2)),
            "label_smoothing_factor": 0.1 if self.loss == "smoothed" else 0.0,
            "average_tokens_across_devices": self.averages,
        }
        self.stops_early = best and draw.random() < 0.5
        self.asynchronous, self.use_ipex = draw.random() < 0.3, draw.random() < 0.3
        self.shares = tuple(draw.choice((1, 2, 5)) for _ in range(self.ranks))
        self.pads = draw.choice(("left", "right")) if self.masks and self.model == "counts" else None
        self.trims = self.pads is not None and self.loss != "counted"

    def __repr__(self) -> str:
        return str(vars(self))

    def data(self, size: int) -> list[dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(size)
        tokens = torch.randint(0, _KINDS, (size, _TOKENS), generator=generator)
        labels = (tokens + tokens.roll(1, 1)) % _KINDS
        if self.masks:
            labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
        rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
        for row in rows if self.pads else ():
            length = int(torch.randint(1, _TOKENS - 1, (), generator=generator))  # so that each batch is trimmed
            row["attention_mask"] = torch.arange(_TOKENS) < length
            if self.pads == "left":
                row["attention_mask"] = row["attention_mask"].flip(0)
                row["labels"][-length] = -100  # a target there would be predicted from padding
            row["labels"][~row["attention_mask"]] = -100
        return rows


class TokenClassifier(BertForTokenClassification):
    """Takes keywords that it does not use, as the models of transformers 5 do; those of 4.57 refuse them."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> Any:
        return super().forward(input_ids, labels=labels)


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "counts":
        return LlamaForCausalLM(LlamaConfig(**_SIZES, use_cache=False))
    zero = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": _KINDS}
    model = TokenClassifier(BertConfig(**_SIZES, **zero))
    model.accepts_loss_kwargs = name == "ignores"  # what models without keywords are to Trainer
    return model


def _mean(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


def _counted(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    total = cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
    return total / num_items_in_batch


class InOrder(Trainer):
    """One process and several shuffle in different orders."""

    def _get_train_sampler(self, *args: Any) -> Any:
        return SequentialSampler(self.train_dataset)


def _train(setting: Setting, output: Path, plain: bool) -> None:
    """Train, evaluate and predict; rank 0 writes what is compared. One process computes the batches of all ranks."""
    row = setting.ranks * setting.batch
    train, ranks, sizes = setting.data(setting.size), 1, {"dataloader_drop_last": setting.drops_last}
    evaluated = setting.data(setting.eval_size)
    if plain:
        evaluated = evaluated[: len(evaluated) // setting.eval_row * setting.eval_row if setting.drops_last else None]
        whole = len(train) // row if setting.drops_last else -(-len(train) // row)
        train, ranks, sizes = list(islice(cycle(train), whole * row)), setting.ranks, {}
    else:
        sizes |= {"gradient_accumulation_steps": setting.accumulation, "use_ipex": setting.use_ipex}
        sizes |= {"trim_padding": setting.trims}
    arguments = TrainingArguments(
        str(output),
        per_device_train_batch_size=row * setting.accumulation if plain else setting.batch,
        per_device_eval_batch_size=ranks * setting.eval_batch,
        eval_strategy="steps",
        save_strategy="steps",
        num_train_epochs=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **setting.arguments,
        **sizes,
    )

    def metrics(found: Any) -> dict[str, float]:
        """Return a metric, and the loss of ranks whose last batches are filled up with the first samples."""
        logits, labels = torch.tensor(found.predictions), torch.tensor(found.label_ids)
        right = {"right": (logits.argmax(-1) == labels)[labels >= 0].float().mean().item()}
        if not (plain and setting.uneven):
            return right
        if (setting.loss, setting.model) == ("own", "counts"):
            logits, labels = logits[:, :-1], labels[:, 1:]
        smoothing = setting.arguments["label_smoothing_factor"]
        losses = cross_entropy(logits.transpose(1, 2), labels, reduction="none", label_smoothing=smoothing).mean(1)
        if setting.loss == "counted":  # Trainer does not count the first target of a causal row
            losses *= labels.numel() / trainer._get_num_items_in_batch([{"labels": labels}], "cpu").item()
        filled = torch.stack(list(islice(cycle(losses), -(-len(losses) // setting.eval_row) * setting.eval_row)))
        means = filled.view(-1, setting.eval_batch).mean(1).repeat_interleave(setting.eval_batch)
        return {**right, "loss": means[: len(losses)].mean().item()}

    trainer = InOrder(
        _model(setting.model),
        arguments,
        train_dataset=train,
        eval_dataset=evaluated,
        compute_metrics=metrics,
        compute_loss_func={"mean": _mean, "counted": _counted}.get(setting.loss),
        callbacks=[EarlyStoppingCallback(2)] if setting.stops_early else [],
    )
    trainer.train()
    predicted = trainer.predict(evaluated)
    if trainer.is_world_process_zero():
        state = trainer.state
        found = {
            "logged": [_compared(entry) for entry in state.log_history],
            "steps": state.global_step,
            "best": Path(state.best_model_checkpoint or "").name,
            "checkpoints": sorted(path.name for path in output.glob("checkpoint-*")),
            "predicted": _without_padding(setting, evaluated, predicted.predictions).tolist(),
            "test": _compared(predicted.metrics),
        }
        output.with_suffix(".json").write_text(json.dumps(found))


def _without_padding(setting: Setting, samples: list[dict[str, torch.Tensor]], predictions: Any) -> Any:
    for row, sample in zip(predictions, samples if setting.pads else (), strict=False):
        row[~sample["attention_mask"].numpy()] = 0  # of padding that is left out there are no predictions
    return predictions


def _compared(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if not name.endswith(_NOT_COMPARED)}


def _found(setting: Setting, output: Path, plain: bool) -> dict[str, Any]:
    def script() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if not plain:
            padding._COLUMNS = 2  # the rows are short
            cpudist.init("gloo", pin=False, async_checkpoint=setting.asynchronous, balance=True)
            job.require().balance.chosen = setting.shares
            add_callbacks(job.require())
        _train(setting, output, plain)
        if not plain:
            cpudist.shutdown()

    ended = fork_ranks(script, 1 if plain else setting.ranks, seconds=120)
    assert [status for status, _ in ended] == [0] * len(ended), (setting, ended)
    return json.loads(output.with_suffix(".json").read_text())


def _differences(found: Any, expected: Any, where: str = "") -> Iterator[str]:
    """Describe what differs by more than rounding; transformers 4 rounds what it logs to 1e-4."""
    if isinstance(found, float):
        if found != pytest.approx(expected, rel=1e-3, abs=2e-4, nan_ok=True):
            yield f"{where}: {found} instead of {expected}"
    elif isinstance(found, dict) and found.keys() == expected.keys():
        for key in found:
            yield from _differences(found[key], expected[key], f"{where}/{key}")
    elif isinstance(found, list) and len(found) == len(expected):
        for key in range(len(found)):
            yield from _differences(found[key], expected[key], f"{where}/{key}")
    elif found != expected:
        yield f"{where}: {found} instead of {expected}"


@pytest.mark.parametrize("number", [pytest.param(n, marks=() if n in _SHORT else pytest.mark.long) for n in range(200)])
def test_it_is_plain_trainers(tmp_path: Path, number: int) -> None:
    setting = Setting(number)
    expected, found = (_found(setting, tmp_path / name, name == "plain") for name in ("plain", "ranks"))
    if differences := list(_differences(found, expected)):
        pytest.fail("\n".join([str(setting), *differences[:20]]), pytrace=False)
