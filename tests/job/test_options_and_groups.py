"""Options of a job, and what a script may choose itself: its process group, the wrapper of its model, its threads.

tests/pinning has the masks.
"""

import os
import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import cpudist
from cpudist.errors import UserError
from cpudist.job import ddp_models, job_options, require
from cpudist.job.ddp_models import DdpModels
from cpudist.job.job_options import JobOptions
from cpudist.job.script_groups import check_backend
from cpudist.patching.patch import apply
from cpudist.patching.undo import Changes
from cpudist.world import World

ENV = {"WORLD_SIZE": "5", "RANK": "3"}


@pytest.mark.parametrize(
    ("given", "as_argument", "as_flag"),
    [
        ({"timeout": "soon"}, "timeout must be a number of seconds", "--timeout must be a number of seconds"),
        ({"stall": 0}, "stall must be a number of seconds", "--stall must be a number of seconds"),
        ({"compress": "zip"}, "compress='zip' is not known; give auto", "--compress zip is not known; give auto"),
        ({"steps": (3, 5)}, "--steps says which steps --timeline", "--steps says which steps --timeline"),
        ({"resume": "later"}, "resume='later' is not known; give auto or", "--resume later is not known; give auto or"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_written(given: dict[str, Any], as_argument: str, as_flag: str) -> None:
    for from_flags, message in ((False, as_argument), (True, as_flag)):
        with pytest.raises(UserError) as raised:
            JobOptions(**given, from_flags=from_flags)
        assert str(raised.value).startswith(message)


def test_without_the_library_a_job_serves_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "find_spec", {"prometheus_client": None}.__getitem__)
    assert JobOptions().metrics_port is None
    with pytest.raises(UserError, match=r"pip install 'cpudist\[metrics\]'"):
        JobOptions(metrics_port=("127.0.0.1", 9400))


def test_a_script_fills_only_what_the_command_line_leaves_open() -> None:
    ours = JobOptions(compress="int8", timeout=9, from_flags=True)
    both = ours.filled_from(JobOptions(compress="bf16", resume="never", async_checkpoint=True, stall=5, timeout=3))
    assert ours.filled_from(JobOptions()) == ours
    assert both == replace(ours, resume="never", async_checkpoint=True, stall=5)
    defaults = JobOptions(resume="auto", async_checkpoint=False, compress="none")
    assert defaults.filled_from(JobOptions(resume="never", async_checkpoint=True, compress="bf16")) == defaults


def test_a_script_for_gpus_is_told_what_to_change(alone: None) -> None:
    with pytest.raises(UserError, match="torch finds no GPU"):
        torch.cuda.set_device(0)


def test_later_calls_of_init_add_options(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    running = require()
    running.pinning = running.pinning or SimpleNamespace()  # as cpudist-train does on any machine
    assert (running.statuses().keys(), os.environ.get("GLOO_SOCKET_IFNAME")) == ({0}, None)
    cpudist.init(compress="powersgd", async_checkpoint=True, resume="never")
    assert (running.options.resumes, running.options.async_checkpoint) == (False, True)
    assert running.ddp_models.compression == "powersgd"
    cpudist.init(compress="none", stall=60)
    assert running.ddp_models.compression == "powersgd", "the first one holds"
    assert (running.options.stall, running._stall.seconds) == (60, 60)
    cpudist.init(stall=70)
    assert running._stall.seconds == 60
    assert running.timeout == 300
    cpudist.init(timeout=7)
    cpudist.init(timeout=8, interface=running.record.network["interface"])
    assert running.timeout == 7, "the first one holds"
    assert capsys.readouterr().err == ""
    cpudist.init(interface="eth7", pin=False)
    assert capsys.readouterr().err.startswith("cpudist: warning: interface='eth7', pin=False comes too late")
    running.options = replace(running.options, interface="lo")
    cpudist.init(interface="eth7")
    assert capsys.readouterr().err == "", "the flag holds"
    with pytest.raises(UserError, match="the backend gloo takes no --comprss"):
        cpudist.init(comprss="bf16")
    running.ended_by_run_target = True  # where shutdown does nothing
    assert cpudist.init("ccl").backend == "gloo"
    assert capsys.readouterr().err.endswith("the backend ccl; backend='gloo' comes first\n")
    running.options, running.world = JobOptions(), replace(running.world, backend="ccl")
    with pytest.raises(UserError, match="or --backend gloo for the script's"):
        cpudist.init("gloo")
    running.ended_by_run_target = False


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ({}, ""),
        ({"backend": "GLOO"}, ""),
        ({"backend": "cpu:gloo,cuda:nccl"}, ""),
        ({"backend": "cuda:nccl"}, ""),
        ({"backend": "undefined", "init_method": "tcp://h:1?rank=0&world_size=1"}, ""),
        ({"backend": "gloo", "timeout": timedelta(seconds=77), "store": dist.HashStore()}, ""),
        ({"backend": "nccl"}, ""),  # there is no GPU
        ({"backend": "ucc"}, "the backend ucc, but the job runs on gloo; give --backend gloo to stay on it$"),
        ({"backend": "cpu:ccl"}, "the backend ccl, but the job runs on gloo;.* or --backend ccl for the script's$"),
        ({"world_size": 2, "rank": 0}, "world size 2, but in this job it is 1;"),
        ({"world_size": 1, "rank": 1}, "rank 1, but in this job it is 0;"),
        ({"init_method": "tcp://h:1?rank=0&world_size=3"}, "world size 3, "),
        ({"init_method": "tcp://h:1?rank=2&world_size=1"}, "rank 2, "),
        ({"env": ENV}, "world size 5, "),
        ({"env": {**ENV, "WORLD_SIZE": "1"}, "init_method": "env://"}, "rank 3, "),
        ({"env": ENV, "init_method": "tcp://h:1", "backend": "gloo"}, ""),
        ({"env": ENV, "store": dist.HashStore()}, ""),
    ],
)
def test_a_call_joins_the_job_or_contradicts_it(
    arguments: dict[str, Any], refused: str, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, group = require(), dist.group.WORLD
    job.options = JobOptions()  # as if "auto" had chosen gloo
    for name, value in arguments.pop("env", {}).items():
        monkeypatch.setenv(name, value)
    if refused:
        with pytest.raises(UserError, match=f"^the script asks for {refused}"):
            dist.init_process_group(**arguments)
    for number in range(0 if refused else 2):
        dist.distributed_c10d.init_process_group(**arguments)
        assert job.timeout == arguments.get("timeout", timedelta(seconds=300)).total_seconds()
        assert (dist.group.WORLD is group) == (number == 0), "a new one after destroy_process_group"
        with pytest.raises(ValueError, match="twice"):
            dist.init_process_group("gloo")
        dist.destroy_process_group()


def test_a_backend_that_the_user_or_the_job_has_chosen_wins(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    job = require()
    assert [check_backend(job, name) for name in ("nccl", "nccl", "gloo", None)] == ["gloo"] * 4
    assert capsys.readouterr().err == "cpudist: the script asks for the backend nccl; backend='gloo' comes first\n"
    job.options, job.world = JobOptions(), replace(job.world, backend="ccl")
    for rank in (0, 1, 0):
        job.world = replace(job.world, rank=rank)
        assert check_backend(job, "gloo") == "ccl"
        said = "" if rank else "cpudist: the script asks for the backend gloo and joins the job on ccl; .*\n"
        assert re.fullmatch(said, capsys.readouterr().err)
        job.overruled.discard("gloo" if rank else None)


class _Compressing:
    """A backend that has bf16 alone, or what `compressions` says."""

    name, compressions = "stand-in", frozenset({"bf16"})

    def __init__(self) -> None:
        self.schemes: list[str] = []

    def compress(self, model: Any, scheme: str) -> None:
        self.schemes.append(scheme)

    def ddp_options(self) -> dict[str, int]:
        return {"bucket_cap_mb": 33}


@pytest.mark.parametrize(
    ("rank", "nodes", "asked", "default", "schemes", "recorded", "said"),
    [
        (0, 2, "bf16", None, ["bf16"], "bf16", ""),
        (0, 2, None, "bf16", ["bf16"], "bf16", ""),
        (0, 2, None, None, ["none"], "none", ""),
        (0, 2, "none", "bf16", ["none"], "none", ""),
        (0, 2, "int8", "bf16", ["none"], "none", "stand-in does not have compress=int8"),
        (1, 2, "int8", "bf16", ["none"], "none", ""),
        (0, 1, "bf16", None, [], "none: all ranks are on one host", "compression by bf16 changes nothing here"),
        (1, 1, "bf16", None, [], "none: all ranks are on one host", ""),
        (0, 1, "auto", None, [], "none: all ranks are on one host", ""),
        (0, 1, None, None, [], "none", ""),
        (0, 2, "auto", None, ["auto", "bf16"], "bf16", "compression auto chooses bf16: a reason"),
        (1, 2, "auto", None, ["auto", "bf16"], "bf16", ""),
    ],
)
def test_a_model_gets_its_own_compression_or_the_jobs(
    rank: int, nodes: int, asked: str | None, default: str | None, schemes: list[str], recorded: str, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model, watched = torch.nn.Linear(1, 1), list[Any]()

    def choose(model: torch.nn.Module, chosen: Any) -> None:
        watched.append(model)
        chosen("bf16", "a reason")

    monkeypatch.setattr(ddp_models, "choose_later", choose)
    backend, record = _Compressing(), SimpleNamespace(compression=None)
    ours = DdpModels(backend, World(rank, 2, rank, 2, 0, nodes, "test"), record, lambda _: None)
    if default:
        ours.set_compression(default, "")
    ours.wrap(lambda: model, ours.applicable(asked))
    assert (backend.schemes, record.compression) == (schemes, recorded)
    assert capsys.readouterr().err.startswith(f"cpudist: {said}" if said else "")
    assert watched == ([model] if asked == "auto" and nodes > 1 else [])


def test_a_scripts_own_ddp_gets_the_compression_and_the_bucket_size_of_the_job() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    backend, record, changes, told = _Compressing(), SimpleNamespace(compression=None), Changes(), list[Any]()
    ours = DdpModels(backend, World(0, 2, 0, 2, 0, 2, "test"), record, told.append)
    ours.set_compression("bf16", "")
    apply(ddp_models.PATCHES, ours, changes)
    model, ddp = torch.nn.Linear(1, 1), torch.nn.parallel.DistributedDataParallel
    assert (ddp(model).bucket_bytes_cap, backend.schemes) == (33 << 20, ["bf16"])
    assert ddp(model, [0], output_device=0, bucket_cap_mb=5).bucket_bytes_cap == 5 << 20  # a script for GPUs
    wrapped = ours.wrap(lambda: ddp(module=model), "none")
    assert (wrapped.bucket_bytes_cap, backend.schemes) == (33 << 20, ["bf16", "bf16", "none"])
    assert (len(told), told[-1]) == (3, wrapped), "each model is told once"
    changes.undo()
    assert ddp(model).bucket_bytes_cap != 33 << 20
    assert len(backend.schemes) == 3
    dist.destroy_process_group()
