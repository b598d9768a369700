"""The recipe classify: tables of text to tokens in one process; on real ranks, which package is a docstring from?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from jobs import Result, mpirun, run, train
from pretrained import minilm, small_bert
from sklearn.metrics import f1_score
from transformers import BertForSequenceClassification, BertTokenizerFast, TrainingArguments, pipeline

from cpudist.errors import UserError
from cpudist.training.recipes import classify
from cpudist.training.recipes.classification import Labelled, label_config

BOUND = 400.0

_QUIET = ["--disable_tqdm", "true", "--logging_steps", "1", "--save_strategy", "no", "--max_seq_length", "24"]
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "not", "so", "##so"]
_EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "stdlib_data.py"


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
    config = small_bert(len(_WORDS), width=8, layers=1, heads=2, tokens=16, **label_config(["bad", "good"]))
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
        samples = classify.read_table([str(tmp_path / f"a.{suffix}")], arguments)
        assert [samples[index] for index in range(2)] == rows, suffix
    with pytest.raises(UserError, match="give files of one kind"):
        classify.read_table([str(tmp_path / "a.csv"), str(tmp_path / "a.tsv")], arguments)


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
    assert classify.text_columns([Labelled(samples, "label", {})], *wanted) == found


def test_an_undecidable_column_lists_them() -> None:
    samples = Dataset.from_dict({"a": ["x"], "b": ["y"], "label": ["z"]})
    with pytest.raises(UserError, match="--text_column; name one of: a, b, label"):
        classify.text_columns([Labelled(samples, "label", {})], None, None)


def test_tokens_are_cached_cut_and_evaluated_at_one_length(
    tokenizer: BertTokenizerFast, tmp_path: Path, arguments: TrainingArguments
) -> None:
    rows = [{"a": "good", "b": "bad", "label": 3}, {"a": "very very good", "b": None, "label": 1}]
    samples = classify.read_table([_write(tmp_path / "a.jsonl", rows)], arguments)
    part = Labelled(samples, "label", {1: 0, 3: 1})
    tokens = classify.tokenize(part, tokenizer, ("a", "b"), 6, arguments)
    decoded = [tokenizer.decode(ids) for ids in tokens[:]["input_ids"]]
    assert decoded == ["[CLS] good [SEP] bad [SEP]", "[CLS] very very good [SEP] [SEP]"]
    assert tokens[:]["token_type_ids"][0] == [0, 0, 0, 1, 1]
    assert tokens[:]["labels"] == [1, 0]

    padded = classify.tokenize(part, tokenizer, ("a", "b"), 16, arguments, padded=True)
    assert [len(ids) for ids in padded[:]["input_ids"]] == [6, 6], "as long as the longest, not as may be"
    assert padded[:]["attention_mask"] == [[1, 1, 1, 1, 1, 0], [1] * 6]
    again = classify.tokenize(part, tokenizer, ("a", "b"), 6, arguments)
    assert [len(ids) for ids in again[:]["input_ids"]] == [5, 6]
    assert again.cache_files == tokens.cache_files != [], "whatever the tokenizer has done in between"


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
        (["--do_train", "--train_file", __file__], "give files of one kind, .csv"),
        (["--do_train", "--train_file", "GOOD", "--dataset_name", "imdb"], "not both"),
        (["--do_train", "--train_file", "GOOD", "--label_column", "stars"], "no column stars; name one of: "),
        (["--do_train", "--train_file", "GOOD", "--text_column", "body"], "no column body; name one of: "),
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


def _docstrings(folder: Path) -> list[str]:
    """Tables of docstrings labelled with their packages, to train and to evaluate on."""
    assert run([sys.executable, str(_EXAMPLE), str(folder)], timeout=120).returncode == 0
    return [str(folder / name) for name in ("train.csv", "validation.csv")]


def _classify(ranks: int, output: Path, *words: str, backend: str = "gloo") -> Result:
    words = ("classify", "--output_dir", str(output), *_QUIET, *words)
    return run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.job
def test_learns_where_docstrings_come_from_and_evaluates_alike_on_any_number_of_ranks(tmp_path: Path) -> None:
    train_file, validation_file = _docstrings(tmp_path)
    output = tmp_path / "out"
    words = ["--validation_file", validation_file, "--do_eval", "--max_eval_samples", "83"]
    learn = ["--train_file", train_file, "--model_name_or_path", minilm(), "--do_train", "--max_steps", "10"]
    learn += ["--learning_rate", "5e-4", "--per_device_train_batch_size", "16"]
    result = _classify(2, output, *words, *learn, backend="ccl")
    assert result.returncode == 0, result.output

    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    # Without knowledge ln 4; the models of transformers would say twice as much on two ranks.
    assert record["loss"]["first"] == pytest.approx(1.386, abs=0.1)
    assert len(record["results"]["sample"].splitlines()) == 8
    assert result.stdout.count("***** eval metrics *****") == 1, "rank 0 alone prints"
    assert "Traceback" not in result.stderr
    trained = _json(output / "eval_results.json")
    assert trained["eval_accuracy"] > 0.7, "a quarter of them are right by chance"

    names = ("eval_accuracy", "eval_f1", "eval_loss")
    # Two ranks have just done it; 83 samples are a multiple of nothing.
    words += ["--model_name_or_path", str(output)]
    result = _classify(3, tmp_path / "three", *words)
    assert result.returncode == 0, result.output
    classify.main(["--output_dir", str(tmp_path / "one"), *_QUIET, "--use_cpu", *words])
    for folder in (tmp_path / "three", tmp_path / "one"):
        evaluated = _json(folder / "eval_results.json")
        assert [evaluated[name] for name in names] == pytest.approx([trained[name] for name in names], rel=1e-5)

    # What was saved does it without the recipe, and has a name for what it finds.
    classifier = pipeline("text-classification", str(output))
    assert classifier("Return the exponent of the adjusted number, rounded.")[0]["label"] == "decimal"
    assert classifier("Wait until the future or the task of the event loop is done.")[0]["label"] == "asyncio"


@pytest.mark.job
def test_user_errors_are_one_line_of_one_rank(tmp_path: Path) -> None:
    train_file, _ = _docstrings(tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "a turtle that draws", "label": "turtle"}\n')
    words = ["--train_file", train_file, "--validation_file", str(other), "--do_train", "--do_eval"]
    result = _classify(2, tmp_path / "out", *words, "--model_name_or_path", minilm())
    assert result.returncode == 2, result.output
    assert "label 'turtle'" in result.stderr, result.output
    assert [line for line in result.stderr.splitlines() if "turtle" in line] == [result.stderr.splitlines()[-1]]
    assert "Traceback" not in result.stderr
