"""Each example learns on two ranks; those of Trainer come to the same in one process, other programs to torchrun's."""

import bisect
import heapq
import json
import re
import runpy
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from jobs import completed, mpirun, run, torchrun, train
from PIL import Image
from trainer_examples import EXAMPLES, minilm, trained


@pytest.mark.job
def test_digits_are_learnt_in_bf16(tmp_path: Path) -> None:
    result = completed(mpirun(2, sys.executable, str(EXAMPLES / "train_digits.py"), str(tmp_path)), timeout=120)
    found = re.search(r"backend='ccl'.*: ([\d.]+)% of 297 digits right", result.stdout)
    assert found, result.output
    assert float(found[1]) > 85
    (line,) = result.report.splitlines()
    assert "bfloat16 autocast" in line


@pytest.mark.job
def test_ranks_that_train_apart_and_are_averaged_learn() -> None:
    words = ["--every", "8", "--group", "1", "--steps", "121"]
    result = completed(mpirun(2, sys.executable, str(EXAMPLES / "local_sgd.py"), *words), timeout=120)
    found = re.search(r"held-out loss (\S+)", result.stdout)
    assert found, result.output
    assert float(found[1]) < 4


@pytest.mark.job
def test_images_are_classified_alike_on_two_ranks(tmp_path: Path) -> None:
    """On two ranks; then two classes in colour, of which one process and two ranks classify as many rightly."""
    digits, colors = tmp_path / "digits", tmp_path / "colors"
    words = ["--num_train_epochs", "6", "--learning_rate", "3e-3", "--per_device_train_batch_size", "16"]
    _, logged = trained(digits, 2, "images", *words, options=["--backend", "gloo"])
    assert logged["eval_accuracy"][-1] > 0.6

    for name, color in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (colors / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8), color).save(colors / name / f"{number}.png")
    words = ["--data_dir", str(colors), "--model_name", str(digits), "--max_steps", "3"]
    _, alone = trained(tmp_path / "1", 1, "images", *words)
    _, logged = trained(tmp_path / "2", 2, "images", *words, options=["--backend", "gloo"])
    config = json.loads((tmp_path / "2" / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "red"}
    assert logged["eval_accuracy"] == alone["eval_accuracy"]


@pytest.mark.job
def test_a_language_model_learns_the_same_on_two_ranks(tmp_path: Path) -> None:
    words = ["--train_files", heapq.__file__, shlex.__file__, "--eval_files", bisect.__file__]
    words += ["--eval_on_start", "--block_size", "32"]
    words += ["--config_overrides", "n_layer=1,n_embd=32,n_head=2", "--vocab_size", "400"]
    words += ["--max_steps", "30", "--learning_rate", "5e-3", "--logging_steps", "1", "--per_device_train_batch_size"]
    result, two = trained(tmp_path / "2", 2, "language_model", *words, "4", options=["--backend", "ccl"])
    assert result.stdout.count("eval_perplexity         =") == 1, "rank 0 alone prints"
    assert result.stdout.count("The model writes:\n") == 1, result.output
    _, one = trained(tmp_path / "1", 1, "language_model", *words, "8")
    assert two["loss"][-1] < two["loss"][0] - 0.5
    assert two["loss"] == pytest.approx(one["loss"], abs=1e-3)
    assert two["eval_perplexity"][-1] < 0.6 * two["eval_perplexity"][0]
    assert two["eval_perplexity"] == pytest.approx(one["eval_perplexity"], rel=1e-3)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "2" / name).exists(), name


@pytest.mark.job
def test_question_answering_learns_and_scores_the_same_on_two_ranks(tmp_path: Path) -> None:
    """A new small BERT, without dropout, learns the answers of a small file."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(minilm())
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(vocab_size=len(tokenizer), **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    BertModel(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    questions = str(Path(__file__).with_name("village.json"))
    words = ["--model_name", str(tmp_path / "model"), "--train_file", questions, "--eval_file", questions]
    words += ["--max_seq_length", "64", "--doc_stride", "16", "--learning_rate", "3e-3", "--logging_steps", "1"]
    words += ["--eval_on_start", "--max_steps"]
    more = ["30", "--per_device_train_batch_size", "4"]
    _, two = trained(tmp_path / "2", 2, "question_answering", *words, *more, options=["--backend", "ccl"])
    _, one = trained(tmp_path / "1", 1, "question_answering", *words, "1", "--per_device_train_batch_size", "8")
    for name in ("loss", "eval_exact_match", "eval_f1"):  # at the start
        assert two[name][0] == pytest.approx(one[name][0], rel=1e-4), name
    assert two["loss"][-1] < two["loss"][0] - 0.5


@pytest.mark.job
def test_adapters_are_trained_alone(tmp_path: Path) -> None:
    completed([sys.executable, str(EXAMPLES / "stdlib_data.py"), str(tmp_path)], timeout=120)
    output, record = tmp_path / "out", tmp_path / "record.json"
    words = [str(EXAMPLES / "lora.py"), str(tmp_path), minilm(), "--output_dir", str(output), "--ddp_backend", "ccl"]
    words += ["--use_ipex", "--bf16", "--learning_rate", "2e-3", "--max_steps", "12", "--logging_steps", "1"]
    result = completed(mpirun(2, *train("--record", str(record), *words, "--report_to", "none")), timeout=400)
    assert "75268 of 22790024 parameters were trained; accuracy " in result.stdout, result.output
    said = json.loads(record.read_text())
    assert (said["backend"], said["world_size"], said["steps"]) == ("ccl", 2, 12)
    assert said["loss"]["last"] < said["loss"]["first"]
    assert "bfloat16 autocast" in said["optimizations"]
    assert (output / "adapter_model.safetensors").stat().st_size < 4.2 * 75268


def test_answers_of_several_windows_and_their_scores() -> None:
    """Two windows of a question, and one of a question without an answer; token 0 is [CLS], token 1 the question."""
    example = runpy.run_path(str(EXAMPLES / "question_answering.py"), run_name="example")
    context = "ab cd ef"
    questions = Dataset.from_list([{"context": context, "answers": ["cd"]}, {"context": context, "answers": []}])
    chars = [[[0, 0], [0, 0], [0, 2], [3, 5]], [[0, 0], [0, 0], [3, 5], [6, 8]], [[0, 0], [0, 0], [0, 2], [3, 5]]]
    windows = Dataset.from_dict({"number": [0, 0, 1], "chars": chars})
    start = np.array([[0.0, 9, 1, 0], [0, 9, 4, 0], [5, 0, 1, 0]])
    end = np.array([[0.0, 9, 0, 1], [0, 0, 1, 3], [5, 0, 0, 1]])
    assert example["best_answers"](questions, windows, (start, end)) == ["cd ef", ""]
    end[1] = [0, 0, 0, -9]  # an answer does not end before it starts
    start[1] = [0, 0, -9, 9]
    assert example["best_answers"](questions, windows, (start, end))[0] == "ab cd"
    for answer, truths, expected in (
        ("The  Lamp!", ["a lamp", "whale oil"], (1.0, 1.0)),
        ("oil", ["1874", "whale oil from the north"], (0.0, 2 / 5)),
        ("", [""], (1.0, 1.0)),
        ("1911", [""], (0.0, 0.0)),
    ):
        assert example["score"](answer, truths) == pytest.approx(expected)


# Other projects' programs; scripts/programs.sh trains more of them.
PROGRAMS = EXAMPLES.parent / "scripts" / "programs"


@pytest.mark.job
@pytest.mark.parametrize(
    ("program", "package", "number"),
    [("fsdp", "torch", 36), ("trl_sft", "trl", 8), ("deepspeed_zero", "deepspeed", 32)],
)
def test_losses_are_torchruns_to_the_last_digit(program: str, package: str, number: int, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script, options = str(PROGRAMS / f"{program}.py"), {"env": {"DS_ACCELERATOR": "cpu"}, "cwd": tmp_path}
    # Not its status: a script without destroy_process_group now and then aborts in gloo's threads at its exit.
    expected = run(torchrun(2, script), timeout=240, **options)
    result = completed(mpirun(2, *train(script)), timeout=240, **options)
    losses = [sorted(re.findall(r"loss (\d+\.\d{6})", each.stdout)) for each in (expected, result)]
    assert len(losses[0]) == number, expected.output
    assert losses[0] == losses[1]
