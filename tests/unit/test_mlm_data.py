"""Text to masked blocks, and the losses of masked tokens, in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import mlm
from cpudist.training.recipes.common.evaluation import IGNORED, ExactTrainer
from cpudist.training.recipes.language import text
from cpudist.training.recipes.mlm import Masking, accuracy, mask_once, masked_loss, masked_token_scores

_LINES = [f"def function_{i}(x): return x + {i}\n" for i in range(200)]
_BLOCK = 16


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return text.train_tokenizer(Dataset.from_dict({"text": _LINES}), 300, text.MASKED)


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_eval=True)


@pytest.fixture
def blocks(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, arguments: TrainingArguments) -> Dataset:
    path = tmp_path / "text.py"
    path.write_text("".join(_LINES))
    return text.cut_into_blocks(text.read_lines([str(path)], arguments), tokenizer, _BLOCK, arguments)


def test_blocks_stand_between_special_tokens(tokenizer: PreTrainedTokenizerBase, blocks: Dataset) -> None:
    rows = blocks["input_ids"][:]
    assert {(len(row), row[0], row[-1]) for row in rows} == {(_BLOCK, tokenizer.cls_token_id, tokenizer.sep_token_id)}
    joined = tokenizer.decode([token for row in rows for token in row[1:-1]])
    assert "".join(_LINES).startswith(joined)
    assert tokenizer("x [MASK]")["input_ids"] == tokenizer("x[MASK]")["input_ids"], "a mask stands for the blank, too"


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, 299), min_size=1, max_size=64),
    probability=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32 - 1),
    index=st.integers(0, 2**31),
)
def test_masking_with_a_seed(
    tokenizer: PreTrainedTokenizerBase, tokens: list[int], probability: float, seed: int, index: int
) -> None:
    before = torch.get_rng_state()
    masked = Masking(tokenizer, mlm_probability=probability).with_seed(tokens, seed, index)
    assert masked == Masking(tokenizer, mlm_probability=probability).with_seed(tokens, seed, index)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(masked["input_ids"]) == len(masked["labels"]) == len(tokens)
    for token, shown, label in zip(tokens, masked["input_ids"], masked["labels"], strict=True):
        assert label == token or (label == IGNORED and shown == token)
        assert label == IGNORED or token not in tokenizer.all_special_ids


def test_as_many_tokens_as_wanted_are_masked_by_every_seed_others(tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = [tokenizer.vocab_size - 1] * 20_000
    masking = Masking(tokenizer, mlm_probability=0.3)
    labels = [masking.with_seed(tokens, *numbers)["labels"] for numbers in ((0, 0), (0, 1), (1, 0))]
    assert [sum(label != IGNORED for label in row) / len(tokens) for row in labels] == pytest.approx(
        [0.3] * 3, abs=0.02
    )
    assert labels[0] != labels[1] != labels[2] != labels[0]


def test_evaluation_is_masked_once_and_training_each_time(
    tokenizer: PreTrainedTokenizerBase, blocks: Dataset, arguments: TrainingArguments
) -> None:
    masking = Masking(tokenizer, mlm_probability=0.3)
    masked = mask_once(blocks, masking, arguments)
    again = mask_once(blocks, Masking(tokenizer, mlm_probability=0.3), arguments)
    assert masked.cache_files == again.cache_files != []
    assert masked[7] == masking.with_seed(blocks[7]["input_ids"], arguments.seed, 7)

    batch = masking([masked[index] for index in (3, 5)])
    assert [row.tolist() for row in batch["input_ids"]] == [masked[3]["input_ids"], masked[5]["input_ids"]]
    train = [blocks.remove_columns("labels")[index] for index in range(8)]
    first, second = masking(train), masking(train)
    assert not torch.equal(first["labels"], second["labels"])


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
    parts = sum(masked_loss(one, part, count) for one, part in zip(outputs, labels, strict=True))
    if count == 0:
        assert parts == 0
    else:
        whole = torch.nn.functional.cross_entropy(torch.cat(logits).flatten(0, 1), torch.cat(labels).flatten())
        assert float(parts) == pytest.approx(float(whole), rel=1e-5)


def test_metrics_do_not_depend_on_batches(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, blocks: Dataset, arguments: TrainingArguments
) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = BertForMaskedLM(BertConfig(**sizes, vocab_size=len(tokenizer), initializer_range=0.5)).eval()
    masking = Masking(tokenizer, mlm_probability=0.3)
    data = mask_once(blocks.select(range(23)), masking, arguments)
    found = []
    for batch_size in (1, 5, 23):
        options = TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=batch_size, report_to=[])
        trainer = ExactTrainer(
            score=masked_token_scores,
            metrics=accuracy,
            model=model,
            args=options,
            eval_dataset=data,
            data_collator=masking,
        )
        metrics = trainer.evaluate()
        found.append((metrics["eval_loss"], metrics["eval_accuracy"]))

    with torch.no_grad():
        outputs = model(torch.tensor(data["input_ids"][:]), labels=torch.tensor(data["labels"][:]))
    labels = torch.tensor(data["labels"][:])
    right = (outputs.logits.argmax(-1) == labels)[labels != IGNORED].double().mean()
    for loss, share in found:
        assert loss == pytest.approx(outputs.loss.item(), rel=1e-5)
        assert share == pytest.approx(right.item(), rel=1e-12)


def _jsonl(path: Path, rows: list[str], column: str) -> None:
    path.write_text("".join(f'{{"number": 1, "{column}": "{row}"}}\n' for row in rows))


def test_a_data_set_by_name_comes_as_lines(tmp_path: Path, arguments: TrainingArguments) -> None:
    _jsonl(tmp_path / "train.jsonl", ["one", "two\\n"], "story")
    _jsonl(tmp_path / "validation.jsonl", ["three"], "story")
    splits = text.read_dataset(str(tmp_path), None, arguments)
    assert {name: split.to_dict() for name, split in splits.items()} == {
        "train": {"text": ["one\n", "two\n"]},
        "validation": {"text": ["three\n"]},
    }
    with pytest.raises(UserError, match=r"cannot read .*missing"):
        text.read_dataset(str(tmp_path / "missing"), None, arguments)


def _no_train_split(folder: Path) -> list[str]:
    _jsonl(folder / "validation.jsonl", ["text"], "text")
    return ["--dataset_name", str(folder), "--do_train"]


def _no_text(folder: Path) -> list[str]:
    (folder / "train.jsonl").write_text('{"number": 1}\n')
    return ["--dataset_name", str(folder), "--do_train"]


def _no_mask_token(folder: Path) -> list[str]:
    text.train_tokenizer(Dataset.from_dict({"text": _LINES}), 300).save_pretrained(folder)
    return ["--tokenizer_name", str(folder), "--train_file", __file__, "--do_train"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (lambda _: ["--train_file", __file__, "--do_train", "--mlm_probability", "1"], "--mlm_probability"),
        (lambda _: ["--train_file", __file__, "--do_train", "--max_seq_length", "2"], "no room"),
        (lambda _: ["--train_file", __file__, "--dataset_name", "x", "--do_train"], "not both"),
        (_no_train_split, "no split train, only validation"),
        (_no_text, "no column of text, only number"),
        (_no_mask_token, "no mask token"),
    ],
)
def test_wrong_input_is_a_user_error(tmp_path: Path, words: Callable[[Path], list[str]], part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        mlm.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", "--vocab_size", "300", *words(tmp_path)])
    assert "\n" not in str(caught.value)
