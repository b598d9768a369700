"""The recipe mlm: masking and its metrics in one process, and from text files to a model on real ranks."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from jobs import Result, mpirun, run, train
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import clm, mlm
from cpudist.training.recipes.language_modeling import DataArguments, cut_into_blocks, read_text, train_tokenizer
from cpudist.training.recipes.mlm import Masking, accuracy, mask_once, masked_token_scores
from cpudist.training.recipes.models import IGNORED, ExactTrainer

BOUND = 400.0

_LIBRARY = Path(sysconfig.get_path("stdlib"))
_HELD_OUT = _LIBRARY / "bisect.py"
_EVALUATION = ["--do_eval", "--max_eval_samples", "17"]
_TINY = ["--config_overrides", "num_hidden_layers=1,hidden_size=32,num_attention_heads=2,intermediate_size=64"]
_LINES = [f"def function_{i}(x): return x + {i}\n" for i in range(200)]
_BLOCK = 16
_SHORT = ["--max_seq_length", "32", "--disable_tqdm", "true"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(Dataset.from_dict({"text": _LINES}), 300, mlm.SPECIAL_TOKENS)


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_eval=True)


@pytest.fixture
def blocks(tmp_path: Path, tokenizer: PreTrainedTokenizerBase, arguments: TrainingArguments) -> Dataset:
    path = tmp_path / "text.py"
    path.write_text("".join(_LINES))
    lines = read_text(DataArguments(train_file=[str(path)]), arguments)["train"]
    return cut_into_blocks(lines, tokenizer, _BLOCK, arguments)


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


def _no_train_split(folder: Path) -> list[str]:
    (folder / "validation.jsonl").write_text('{"text": "text"}\n')
    return ["--dataset_name", str(folder), "--do_train"]


def _no_text(folder: Path) -> list[str]:
    (folder / "train.jsonl").write_text('{"number": 1}\n')
    return ["--dataset_name", str(folder), "--do_train"]


def _no_mask_token(folder: Path) -> list[str]:
    train_tokenizer(Dataset.from_dict({"text": _LINES}), 300, clm.SPECIAL_TOKENS).save_pretrained(folder)
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


def _mlm(ranks: int, backend: str, output: Path, *words: str) -> Result:
    words = ("mlm", "--output_dir", str(output), *_SHORT, *words)
    result = run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)
    assert result.returncode == 0, result.output
    return result


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A model trained for a moment on two ranks, on real text: its folder, and how the job went."""
    folder = tmp_path_factory.mktemp("mlm")
    files = [str(_LIBRARY / name) for name in ("textwrap.py", "shlex.py", "heapq.py")]
    words = ["--train_file", *files, "--vocab_size", "400", *_TINY, "--do_train", "--max_steps", "40"]
    words += ["--validation_file", str(_HELD_OUT), "--eval_on_start", *_EVALUATION]
    words += ["--learning_rate", "1e-2", "--per_device_train_batch_size", "8", "--logging_steps", "5"]
    return folder / "out", _mlm(2, "ccl", folder / "out", *words)


@pytest.mark.job
def test_learns_and_leaves_everything_behind(trained: tuple[Path, Result]) -> None:
    output, result = trained
    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    # A loss that Trainer has multiplied by the number of ranks would start at twice this.
    assert record["loss"]["first"] == pytest.approx(5.99, abs=0.5), "untrained, about log(400)"
    assert record["loss"]["last"] < record["loss"]["first"] - 0.5
    results = record["results"]
    assert results["perplexity"]["last"] < 0.6 * results["perplexity"]["first"]
    assert 0.03 < results["eval"]["eval_accuracy"] < 1
    assert "[MASK]" in results["sample"]
    assert f"a sample of what the model takes masked words for:\n{results['sample']}\n" in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.job
def test_a_pretrained_model_evaluates_alike_on_any_number_of_ranks(
    tmp_path: Path, trained: tuple[Path, Result]
) -> None:
    """On two, three, and in this process alone; alike, too, whether the text comes from a file or from a data set."""
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(_HELD_OUT, data / "validation.txt")
    words = ["--model_name_or_path", str(trained[0]), "--dataset_name", str(data), "--per_device_eval_batch_size", "4"]
    _mlm(3, "gloo", tmp_path / "three", *words, *_EVALUATION)
    mlm.main(["--output_dir", str(tmp_path / "one"), *_SHORT, "--use_cpu", *words, *_EVALUATION])
    expected = _json(trained[0] / "eval_results.json")
    for name in ("three", "one"):
        found = _json(tmp_path / name / "eval_results.json")
        assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-6)
        assert found["eval_accuracy"] == pytest.approx(expected["eval_accuracy"], rel=1e-12)
