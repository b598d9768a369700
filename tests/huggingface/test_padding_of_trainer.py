"""What a run of Trainer reports about padding, and the tokens that it counts."""

import random
import re
import sys
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, Trainer, TrainingArguments

from cpudist import job
from cpudist.errors import UserError
from cpudist.huggingface import add_callbacks
from cpudist.optimization import operators

pytestmark = [pytest.mark.versions, pytest.mark.usefixtures("alone")]

WIDTH = 256
SMALL = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
DRAW = random.Random(0)
LENGTHS = [DRAW.choice((8, 12, 16, 60)) for _ in range(96)]  # what is trained on
MEAN = sum(LENGTHS) / len(LENGTHS)
LOSS_OF_QA = "the loss of BertForQuestionAnswering may depend on padding"


def _collate(lengths: list[int], width: int = 1, spans: bool = False) -> dict[str, torch.Tensor]:
    """Pad rows of these lengths to the longest one, and to `width`."""
    mask = pad_sequence([*(torch.ones(length, dtype=torch.long) for length in lengths), torch.zeros(width)], True)[:-1]
    ends = dict.fromkeys(("start_positions", "end_positions"), torch.ones(len(lengths), dtype=torch.long))
    tokens = 5 * mask.long()
    more = ends if spans else {"labels": tokens.where(mask > 0, -100)}
    return {"input_ids": tokens, "attention_mask": mask.long(), **more}


def _train(folder: Path, collate: Any, model: Any = BertForMaskedLM, kind: Any = Trainer, **words: Any) -> None:
    arguments = {"num_train_epochs": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, **words}
    add_callbacks(job.require())
    kind(
        model(BertConfig(**SMALL)),
        TrainingArguments(str(folder), report_to="none", disable_tqdm=True, remove_unused_columns=False, **arguments),
        train_dataset=LENGTHS,
        data_collator=collate,
    ).train()


def test_one_line_names_the_option_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> tuple[int, str]:
        """The share of padding, and the option."""
        (line,) = (line for line in capsys.readouterr().err.splitlines() if "padding" in line)
        share, option, gain = re.search(r"(\d+) % of .*; (.+) would make steps about (\S+) times", line).groups()
        assert float(gain) >= 1.1
        return int(share), option + line.partition("as fast")[2]

    def padded(lengths: Any) -> Any:
        return _collate(lengths, WIDTH)

    def questions(lengths: Any) -> Any:
        return _collate(lengths, WIDTH, spans=True)

    _train(tmp_path, padded)
    training = job.require().record.training
    assert training.per_second("tokens") / training.per_second("samples") == pytest.approx(MEAN)
    share, option = said()
    assert share == pytest.approx(100 * (1 - MEAN / WIDTH), abs=2)
    assert option == "--trim_padding"
    _train(tmp_path, padded, trim_padding=True)
    assert "padding" not in capsys.readouterr().err
    _train(tmp_path, padded, use_ipex=True)
    leaves_out = operators.LINEAR in job.require().record.optimizations
    assert ("of the tokens are padding" in capsys.readouterr().err) != leaves_out
    _train(tmp_path, _collate)
    assert said()[1] in ("--group_by_length", "--train_sampling_strategy group_by_length")
    _train(tmp_path, questions, BertForQuestionAnswering)
    assert said()[1] == f"padding each batch to its longest row, but {LOSS_OF_QA}"
    arguments = make_dataclass("Arguments", ["pad_to_max_length"])
    monkeypatch.setattr(sys.modules["__main__"], "Arguments", arguments, raising=False)
    _train(tmp_path, questions, BertForQuestionAnswering)
    assert said()[1] == f"--pad_to_max_length False, but {LOSS_OF_QA}"


class OwnLoss(Trainer):
    """A Trainer of the user."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"model": BertForQuestionAnswering}, LOSS_OF_QA),
        ({"kind": OwnLoss}, "OwnLoss.compute_loss may depend on padding"),
    ],
)
def test_losses_that_may_depend_on_padding_are_refused(tmp_path: Path, words: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"^--trim_padding: {why}"):
        _train(tmp_path, _collate, trim_padding=True, **words)
