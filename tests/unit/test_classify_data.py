"""Tables of labelled text to tokens and classes, and the metrics, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, Features
from sklearn.metrics import f1_score
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from cpudist.errors import UserError
from cpudist.training.recipes import classify
from cpudist.training.recipes.classes import classification, labels, tables
from cpudist.training.recipes.common import splits

_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not", "so", "##so"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared text goes into the test's folder and not into the user's own cache."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True, do_eval=True)


@pytest.fixture
def tokenizer(tmp_path: Path) -> BertTokenizerFast:
    (tmp_path / "vocab.txt").write_text("\n".join(_WORDS))
    return BertTokenizerFast.from_pretrained(tmp_path)


@pytest.fixture
def model(tmp_path: Path, tokenizer: BertTokenizerFast) -> str:
    """A tiny classifier of two classes, as a folder."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        **labels.configured(["bad", "good"]),
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def _write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_all_formats_say_the_same(tmp_path: Path, arguments: TrainingArguments) -> None:
    rows = [{"text": 'a "quoted", text', "label": "None"}, {"text": "NA", "label": "no"}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    _write(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.csv").write_text('text,label\n"a ""quoted"", text",None\nNA,no\n')
    (tmp_path / "a.tsv").write_text('text\tlabel\n"a ""quoted"", text"\tNone\nNA\tno\n')
    for suffix in ("json", "jsonl", "csv", "tsv"):
        parts = tables.read_files({"train": [str(tmp_path / f"a.{suffix}")], "validation": []}, arguments)
        assert set(parts) == {"train"}
        assert [parts["train"][index] for index in range(2)] == rows, suffix
    with pytest.raises(UserError, match="all files must be of one of"):
        tables.read_files({"train": [str(tmp_path / "a.csv"), str(tmp_path / "a.tsv")]}, arguments)


@pytest.mark.parametrize(
    ("columns", "wanted", "found"),
    [
        (["label", "other", "text"], (None, None), ("text", None)),
        (["label", "sentence1", "sentence2"], (None, None), ("sentence1", "sentence2")),
        (["label", "sentence", "question"], (None, None), ("question", "sentence")),
        (["label", "review"], (None, None), ("review", None)),
        (["label", "a", "b"], ("b", "a"), ("b", "a")),
        (["label", "a", "b"], (None, "b"), ("a", "b")),
    ],
)
def test_columns_of_text(columns: list[str], wanted: tuple[str | None, ...], found: tuple[str | None, ...]) -> None:
    samples = Dataset.from_dict({"id": [1], **{name: ["x"] for name in columns}})
    assert tables.text_columns(samples, (wanted[0], wanted[1]), "label") == found


def test_an_undecidable_column_lists_them() -> None:
    samples = Dataset.from_dict({"a": ["x"], "b": ["y"], "label": ["z"]})
    with pytest.raises(UserError, match="--text_column; the columns are: a, b, label"):
        tables.text_columns(samples, (None, None), "label")


def test_names_of_labels() -> None:
    def names(values: list[object], kind: object = None) -> dict[object, str]:
        return labels.names_by_value(Dataset.from_dict({"label": values}, kind and Features(label=kind)), "label")

    assert list(names([10, 2, 2, -1]).values()) == ["-1", "2", "10"]
    assert list(names(["b", "a", "10", "9"]).values()) == ["9", "10", "a", "b"]
    assert names([2, 0], ClassLabel(names=["x", "y", "a"])) == {0: "x", 2: "a"}
    for values, kind, part in [
        (["a", None], None, "no label"),
        (["a", ""], None, "no label"),
        ([0.5, 1.0], None, "float64"),
        ([-1, -1], ClassLabel(names=["x"]), "not labelled"),
        ([[1]], None, "strings or whole numbers"),
    ]:
        with pytest.raises(UserError, match=part):
            names(values, kind)


def test_classes_of_training_and_of_models() -> None:
    assert labels.settle(["a", "b"], ["b"], ["LABEL_0", "LABEL_1"]) == ["a", "b"]
    assert labels.settle(["a", "b"], [], ["b", "a"]) == ["b", "a"], "as the model has learnt them"
    assert labels.settle([], ["a"], ["b", "a"]) == ["b", "a"]
    assert labels.settle([], ["1"], ["no", "yes"]) == ["0", "1"]
    for train, evaluation, known, part in [
        (["a", "b"], ["a", "c"], None, "label 'c' is in the validation data, but not in the training data: a, b"),
        (["a"], [], None, "only one label, 'a'"),
        ([], ["c"], ["a", "b"], "label 'c' is unknown to the model, which tells apart: a, b"),
    ]:
        with pytest.raises(UserError, match=part):
            labels.settle(train, evaluation, known)


def test_tokens_are_cached_cut_and_evaluated_at_one_length(
    tokenizer: BertTokenizerFast, tmp_path: Path, arguments: TrainingArguments
) -> None:
    rows = [{"a": "good", "b": "bad", "label": 3}, {"a": "very very good", "b": None, "label": 1}]
    samples = tables.read_files({"train": [_write(tmp_path / "a.jsonl", rows)]}, arguments)["train"]
    tokenise = tables.Tokenising(tokenizer, ("a", "b"), arguments)
    tokens = tokenise(samples, "label", {1: 0, 3: 1}, 6)
    decoded = [tokenizer.decode(ids) for ids in tokens[:]["input_ids"]]
    assert decoded == ["[CLS] good [SEP] bad [SEP]", "[CLS] very very good [SEP] [SEP]"]
    assert tokens[:]["token_type_ids"][0] == [0, 0, 0, 1, 1]
    assert tokens[:]["labels"] == [1, 0]

    padded = tokenise.evaluated(samples, "label", {1: 0, 3: 1}, 16)
    assert [len(ids) for ids in padded[:]["input_ids"]] == [6, 6], "as long as the longest, not as may be"
    assert padded[:]["attention_mask"] == [[1, 1, 1, 1, 1, 0], [1] * 6]
    again = tables.Tokenising(tokenizer, ("a", "b"), arguments)(samples, "label", {1: 0, 3: 1}, 6)
    assert [len(ids) for ids in again[:]["input_ids"]] == [5, 6]


def test_parts_and_samples(arguments: TrainingArguments) -> None:
    samples = Dataset.from_dict({"number": list(range(100))})
    train, evaluation = splits.choose({"train": samples}, 20, arguments)
    assert sorted([*train[:]["number"], *evaluation[:]["number"]]) == list(range(100))
    few = samples.select(range(3))
    assert splits.choose({"train": samples, "test": samples, "validation_matched": few}, 20, arguments)[1] is few
    some = splits.at_most(samples, 10, arguments)
    assert len(some) == 10
    assert max(some[:]["number"]) > 20, "from all over the file"
    assert some[:]["number"] == splits.at_most(samples, 10, arguments)[:]["number"]
    with pytest.raises(UserError, match="no part named train in the data; its parts are: test"):
        splits.choose({"test": samples}, None, arguments)


def test_macro_f1_is_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    for classes in (2, 5, 30):
        truth, guess = generator.integers(classes, size=(2, 40))
        assert classification.macro_f1(truth, guess) == pytest.approx(f1_score(truth, guess, average="macro"))
    rows = {"labels": np.array([0, 1, 1, 3]), "predictions": np.array([0, 1, 0, 2])}
    assert classification.metrics(rows) == {"accuracy": 0.5, "f1": pytest.approx((2 / 3 + 2 / 3) / 4)}


def test_the_loss_of_a_step_is_the_mean_over_its_samples(arguments: TrainingArguments) -> None:
    logits, target = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    arguments.label_smoothing_factor = 0.1
    expected = torch.nn.functional.cross_entropy(logits, target, label_smoothing=0.1)
    loss = classification.loss(arguments)
    parts = [
        loss(SequenceClassifierOutput(logits=logits[part]), target[part], num_items_in_batch=6)
        for part in (slice(0, 5), slice(5, 6))
    ]
    torch.testing.assert_close(sum(parts), expected)
    torch.testing.assert_close(loss(SequenceClassifierOutput(logits=logits), target), expected)


def test_metrics_do_not_depend_on_batches(
    model: str, tokenizer: BertTokenizerFast, tmp_path: Path, arguments: TrainingArguments
) -> None:
    texts = ["good", "very good", "bad", "not so good", "so so", "very very very bad", "bad not good"]
    rows = [{"text": text, "label": "good" if text.endswith("good") else "bad"} for text in texts]
    results = []
    for size in (1, 3, 7):
        output = str(tmp_path / f"out-{size}")
        words = ["--model_name_or_path", model, "--validation_file", _write(tmp_path / "a.jsonl", rows)]
        classify.main(
            ["--output_dir", output, "--do_eval", "--use_cpu", "--per_device_eval_batch_size", str(size), *words]
        )
        found = json.loads((tmp_path / f"out-{size}" / "eval_results.json").read_text())
        results.append([found[f"eval_{name}"] for name in ("loss", "accuracy", "f1")])

    with torch.no_grad():
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        logits = BertForSequenceClassification.from_pretrained(model).eval()(**batch).logits
    truth = torch.tensor([int(row["label"] == "good") for row in rows])
    expected = [
        float(torch.nn.functional.cross_entropy(logits, truth)),
        float((logits.argmax(1) == truth).float().mean()),
        f1_score(truth, logits.argmax(1), average="macro"),
    ]
    assert results == [pytest.approx(expected, rel=1e-5)] * 3


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--do_train"], "--train_file or --dataset_name"),
        (["--do_eval"], "--validation_file"),
        (["--do_train", "--train_file", "missing.csv"], "missing.csv"),
        (["--do_train", "--train_file", __file__], "all files must be of one of .csv"),
        (["--do_train", "--train_file", "GOOD", "--dataset_name", "imdb"], "not both"),
        (["--do_train", "--train_file", "GOOD", "--label_column", "stars"], "no column stars; the columns are"),
        (["--do_train", "--train_file", "GOOD", "--text_column", "body"], "no column body; the columns are"),
        (["--do_train", "--train_file", "GOOD", "--max_seq_length", "2"], "--max_seq_length"),
        (["--do_train", "--train_file", "BROKEN"], "cannot read"),
        (["--do_train", "--do_eval", "--train_file", "GOOD", "--validation_file", "OTHER"], "label 'fair'"),
        (["--do_eval", "--validation_file", "OTHER"], "label 'fair' is unknown to the model"),
    ],
)
def test_wrong_input_is_a_user_error(model: str, tmp_path: Path, words: list[str], part: str) -> None:
    files = {
        "GOOD": _write(tmp_path / "good.jsonl", [{"text": "so", "label": name} for name in ("good", "bad")]),
        "OTHER": _write(tmp_path / "other.jsonl", [{"text": "so", "label": "fair"}]),
        "BROKEN": str(tmp_path / "broken.json"),
    }
    (tmp_path / "broken.json").write_text('{"text": ')
    words = [files.get(word, word) for word in words]
    with pytest.raises(UserError, match=part) as caught:
        classify.main(["--output_dir", str(tmp_path / "out"), "--use_cpu", "--model_name_or_path", model, *words])
    assert "\n" not in str(caught.value)


def test_the_model_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--model_name_or_path"):
        classify.main(["--output_dir", str(tmp_path), "--do_train"])
