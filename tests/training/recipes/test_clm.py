"""The recipe clm, from text files to a model, a record and a curve, on real ranks."""

from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from jobs import Result, mpirun, run, train

from cpudist.errors import UserError
from cpudist.training.recipes import clm

BOUND = 400.0

_TINY = ["--config_overrides", "n_layer=1,n_embd=32,n_head=2", "--vocab_size", "400", "--block_size", "32"]
_QUIET = ["--disable_tqdm", "true", "--logging_steps", "5"]
_TRAINING = ["--do_train", "--do_eval", "--eval_on_start", "--max_eval_samples", "17", "--max_steps", "40"]
_TRAINING += ["--save_steps", "20", "--learning_rate", "5e-3", "--per_device_train_batch_size", "4"]
_TRAINING += ["--logging_steps", "1"]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    """Real text of some 60 KB, the same on every machine with the same Python."""
    library = Path(sysconfig.get_path("stdlib"))
    return [str(library / name) for name in ("textwrap.py", "shlex.py", "heapq.py", "bisect.py")]


def _clm(ranks: int, output: Path, *words: str, backend: str = "gloo", restart: int = 0, run_id: str = "a") -> Result:
    words = ("clm", "--output_dir", str(output), *_TINY, *_QUIET, *words)
    env = {"CPUDIST_RUN_ID": run_id, "CPUDIST_RESTART_COUNT": str(restart)}
    return run(mpirun(ranks, *train("--backend", backend, *words)), timeout=BOUND, env=env)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def trained(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A model trained for a moment on two ranks: its folder, and how the job went."""
    output = tmp_path_factory.mktemp("clm") / "out"
    result = _clm(2, output, "--train_file", *corpus, *_TRAINING, backend="ccl")
    assert result.returncode == 0, result.output
    return output, result


@pytest.mark.job
@pytest.mark.versions
def test_trains_evaluates_and_leaves_everything_behind(trained: tuple[Path, Result]) -> None:
    output, result = trained
    record = _json(output / "cpudist.json")
    assert (record["backend"], record["world_size"], record["exit"]) == ("ccl", 2, "completed")
    assert (record["steps"], record["dtype"]) == (40, "float32")
    assert record["loss"]["last"] < record["loss"]["first"] - 0.5
    assert record["results"]["perplexity"]["last"] < 0.6 * record["results"]["perplexity"]["first"]
    assert record["tokens_per_second"] == pytest.approx(32 * record["samples_per_second"], rel=1e-4)
    assert 0 < record["step_seconds"]["median"] <= record["step_seconds"]["p95"]
    assert [entry["rank"] for entry in record["pinning"]] == [0, 1]
    assert 0 < record["communication_share"] < 1

    assert (output / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("model.safetensors", "tokenizer.json", "train_results.json", "eval_results.json"):
        assert (output / name).exists(), name
    assert result.stdout.count("***** eval metrics *****") == 1, "rank 0 alone prints"
    assert "Traceback" not in result.stderr


@pytest.mark.job
def test_evaluates_alike_on_any_number_of_ranks(
    tmp_path: Path, corpus: list[str], trained: tuple[Path, Result]
) -> None:
    """On the two that have trained the model, on three, and in this process alone."""
    words = ["--train_file", *corpus, "--do_eval", "--max_eval_samples", "17", *_QUIET, "--block_size", "32"]
    words += ["--model_name_or_path", str(trained[0]), "--per_device_eval_batch_size", "4"]
    result = run(mpirun(3, *train("--backend", "gloo", "clm", "--output_dir", str(tmp_path / "three"), *words)), BOUND)
    assert result.returncode == 0, result.output
    clm.main(["--output_dir", str(tmp_path / "one"), "--use_cpu", *words])
    folders = (trained[0], tmp_path / "three", tmp_path / "one")
    losses = [_json(folder / "eval_results.json")["eval_loss"] for folder in folders]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


@pytest.mark.job
def test_resumes_where_it_stopped(tmp_path: Path, corpus: list[str], trained: tuple[Path, Result]) -> None:
    """By --resume_from_checkpoint last, and by itself after a restart with fewer ranks: as if it had not stopped."""
    whole, half = trained[0], tmp_path / "half"
    (half / "again").mkdir(parents=True)
    for folder in (half, half / "again"):
        shutil.copytree(whole / "checkpoint-20", folder / "checkpoint-20")
    others = half / "again" / "checkpoint-99"
    shutil.copytree(whole / "checkpoint-20", others)
    (others / "checkpoint.json").write_text(
        json.dumps({**_json(others / "checkpoint.json"), "runs": ["an earlier one"]})
    )

    words = ["--train_file", *corpus, *_TRAINING]
    resumed = _clm(2, half, *words, "--resume_from_checkpoint", "last", run_id="another")
    assert resumed.returncode == 0, resumed.output
    restarted = _clm(1, half / "again", *words, restart=1)
    assert restarted.returncode == 0, restarted.output
    assert f"cpudist: restart 1: going on from {half}/again/checkpoint-20\n" in restarted.stderr
    assert _json(half / "again" / "cpudist.json")["restarts"] == 1
    for folder, difference in ((half, 1e-5), (half / "again", 1e-4)):  # one rank adds in another order
        for name in ("loss", "learning_rate"):
            expected, found = (
                [entry[name] for entry in _json(output / "trainer_state.json")["log_history"] if name in entry]
                for output in (whole, folder)
            )
            assert len(expected) == 40
            assert found == pytest.approx(expected, abs=difference)


@pytest.mark.job
@pytest.mark.versions
def test_bf16_on_gloo_from_a_file_of_options(tmp_path: Path, corpus: list[str]) -> None:
    options = {
        "train_file": corpus,
        "output_dir": str(tmp_path / "out"),
        "config_overrides": "n_layer=1,n_embd=32,n_head=2",
        "vocab_size": 400,
        "block_size": 32,
        "do_train": True,
        "max_steps": 4,
        "bf16": True,
        "ddp_backend": "gloo",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options))
    file = tmp_path / "record.json"
    command = train("--backend", "gloo", "--record", str(file), "clm", str(path))
    result = run(mpirun(2, *command), timeout=BOUND)
    assert result.returncode == 0, result.output
    record = _json(file)
    assert (record["backend"], record["dtype"], record["steps"]) == ("gloo", "bfloat16", 4)
    assert record["communication_share"] is None
    assert not (tmp_path / "out" / "cpudist.json").exists()


@pytest.mark.job
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--train_file", "missing.txt", "--do_train"], "missing.txt"),
        (
            ["--train_file", __file__, "--do_train", "--ddp_backend", "mpi"],
            "for the backend mpi, but",
        ),
    ],
)
def test_user_errors_are_one_line_of_one_rank(tmp_path: Path, words: list[str], part: str) -> None:
    result = _clm(2, tmp_path / "out", *words)
    assert result.returncode == 2, result.output
    assert part in result.stderr, result.output
    assert result.stderr.count("\n") == 1, result.output


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--train_file", __file__], "--do_train"),
        (["--do_train"], "--train_file"),
        (["--train_file", __file__, "--do_train", "--block_size", "100000"], "too short for one block"),
        (["--train_file", __file__, "--do_train", "--config_overrides", "depth=3"], "depth"),
        (["--train_file", __file__, "--do_train", "--model_type", "gpt99"], "gpt99"),
        (
            ["--train_file", __file__, "--do_train", "--model_name_or_path", "/missing/model"],
            "/missing/model",
        ),
    ],
)
def test_wrong_input_is_a_user_error(tmp_path: Path, words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        clm.main(["--output_dir", str(tmp_path), "--use_cpu", *words])
    assert "\n" not in str(caught.value)
