"""Checkpoints of several ranks: on other numbers of them, other backends, after a kill, and what they agree on."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import completed, launch, mpirun

import cpudist
from cpudist.checkpoints import series
from cpudist.checkpoints.publishing import Ranks
from cpudist.checkpoints.runs import newest_whole
from cpudist.checkpoints.series import _checked, check_shared
from cpudist.errors import UserError

CHECK = str(Path(__file__).parent / "checks" / "loop.py")


ON_CPUS = ((2, {"backend": "ccl"}), (3, {"backend": "gloo"}), (1, {"backend": "ccl"}))
ON_DEVICES = ((1, {"backend": "xla", "mesh": "data=2,model=2"}), (2, {"backend": "gloo"}), (2, {"backend": "xla"}))
XLA = [pytest.mark.versions, pytest.mark.skipif(find_spec("torch_xla") is None, reason="torch_xla is not installed")]


@pytest.mark.job
@pytest.mark.parametrize("starts", [ON_CPUS, pytest.param(ON_DEVICES, marks=XLA)], ids=["on CPUs", "on devices"])
def test_goes_on_with_other_ranks_and_on_another_backend(tmp_path: Path, starts: Any) -> None:
    for number, (ranks, options) in enumerate(starts, 1):
        command = mpirun(ranks, sys.executable, CHECK, str(tmp_path), str(2 * number))
        result = completed(command, timeout=150, env={"CHECK_INIT": json.dumps({**options, "pin": False})})
        assert f"{2 * number} steps passed" in result.stdout, result.output
        assert starts is ON_DEVICES or "Warning" not in result.stderr, result.output
        said = f"going on from {tmp_path}/plain/checkpoint-{2 * number - 2}"
        assert (said in result.stderr) == (number > 1), result.output


@pytest.mark.job
def test_killed_while_saving_it_goes_on_from_the_newest_complete_one(tmp_path: Path) -> None:
    options = ["--nproc", "2", "--max-restarts", "2", "--", "--backend", "ccl"]
    result = completed(launch(*options, CHECK, str(tmp_path), "6", "4"), timeout=150)
    assert "6 steps passed" in result.stdout, result.output
    assert f"restart 1: going on from {tmp_path}/plain/checkpoint-3" in result.stderr, result.output
    assert f"restart 1: no checkpoint of this run in {tmp_path}/fsdp yet" in result.stderr, result.output
    assert f"restart 2: going on from {tmp_path}/fsdp/checkpoint-3" in result.stderr, result.output
    for kind in ("plain", "fsdp"):
        assert sorted(path.name for path in (tmp_path / kind).iterdir()) == ["checkpoint-5", "checkpoint-6"]


@pytest.mark.parametrize(
    ("seen", "part"), [([{2}, {4}], "ranks see different ones"), ([{2}, set()], "rank 1 sees none, other ranks do")]
)
def test_hosts_without_a_common_checkpoint(monkeypatch: pytest.MonkeyPatch, seen: list[set[int]], part: str) -> None:
    monkeypatch.setattr(Ranks, "all_gather", lambda self, value: seen)
    with pytest.raises(UserError, match=f"{part}; share it"):
        newest_whole({2: Path("out/checkpoint-2")}, Path("out"), "share it", lambda path: None)


class _Others(Ranks):
    """Two ranks in one process: rank 1 says what it is given."""

    def __init__(self, *says: object) -> None:
        super().__init__()
        self.size, self._says, self.said = 2, iter(says), list[Any]()

    def all_gather(self, value: Any) -> list[Any]:
        self.said.append(value)
        return [value, next(self._says)]


def test_a_folder_that_the_hosts_do_not_share_is_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = tmp_path / "new" / "out", (None, None)
    check_shared(folder, others := _Others(str(tmp_path), made, True))
    assert others.said[0] == str(tmp_path), "the nearest that is there"
    with pytest.raises(UserError, match=f"do not share {folder}: rank 1 sees another folder than rank 0"):
        check_shared(folder, _Others(str(tmp_path.parent), made, False))
    monkeypatch.setattr(series, "Ranks", lambda: _Others(str(tmp_path.parent), made, False))
    monkeypatch.setattr(series, "current", lambda: SimpleNamespace(world=SimpleNamespace(node_count=2)))
    with pytest.raises(UserError, match="do not share"):
        cpudist.Checkpoints(folder)
    assert not any(tmp_path.iterdir())


def test_ranks_save_one_step() -> None:
    assert _checked(4, _Others(4)) == 4
    with pytest.raises(UserError, match="rank 1 saves step 5 and rank 0 step 4"):
        _checked(4, _Others(5))


def test_an_error_of_any_rank_is_raised_on_all() -> None:
    own, ours, well = ValueError("own"), UserError("ours"), ("theirs", None)

    def fail(error: Exception) -> None:
        raise error

    assert _Others(well).each(lambda: "mine") == ["mine", "theirs"]
    for error, message in ((own, "^own$"), (ours, "^rank 0: ours$")):
        with pytest.raises(type(error), match=message):
            _Others(well).each(lambda error=error: fail(error))
        with pytest.raises(type(error)) as caught:
            Ranks().each(lambda error=error: fail(error))
        assert caught.value is error, "of a process that is alone"
    with pytest.raises(UserError, match="rank 1: full"):
        _Others((None, "full")).each(lambda: None)
    second = _Others(well)
    second.rank = 1
    assert second.first(lambda: pytest.fail("rank 0 alone does it")) is None
