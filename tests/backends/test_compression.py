"""Schemes of compressed gradients: their names, who has them, and where there is nothing to compress."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist import backends, job
from cpudist.backends import measured
from cpudist.backends.compression import check_backend, check_scheme
from cpudist.errors import UserError


@pytest.mark.parametrize(
    ("texts", "known"),
    [
        (["auto", "none", "bf16", "int8", "powersgd", "powersgd:1", "powersgd:16"], True),
        (["", "fp16", "bf16:2", "powersgd:", "powersgd:0", "powersgd:x"], False),
    ],
)
def test_schemes(texts: list[str], known: bool) -> None:
    for text in texts:
        with nullcontext() if known else pytest.raises(UserError, match=r"^--compress zip is not known; give auto"):
            assert check_scheme(text, "--compress zip") == text


@pytest.mark.parametrize(
    ("backend", "scheme", "remedy"),
    [("gloo", "bf16", "use powersgd"), ("gloo", "int8", "use powersgd"), ("xla", "powersgd:2", "leave it out")],
)
def test_a_backend_that_has_no_such_scheme(backend: str, scheme: str, remedy: str) -> None:
    with pytest.raises(UserError, match=f"{backend} cannot compress gradients as --compress zip says; {remedy}"):
        check_backend(backends.get(backend)(), scheme, "--compress zip")


def test_on_one_host_nothing_is_compressed(alone: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"^compress='often' is not known"):
        cpudist.wrap(torch.nn.Linear(2, 2), compress="often")
    model = cpudist.wrap(torch.nn.Linear(2, 2), compress="powersgd:2")
    assert "compression by powersgd:2 changes nothing here: all ranks are on one host" in capsys.readouterr().err
    model(torch.ones(1, 2))
    gradients = job.require().record.as_dict("running")["gradients"]
    assert gradients == {"compress": "none: all ranks are on one host", "bytes": None, "compressed_bytes": None}


def test_a_model_that_the_script_wraps_itself_has_the_jobs_scheme_and_buckets(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = job.require()
    running.communication.world = replace(running.world, node_count=2)
    running.communication.set_compression("powersgd:2", "--compress powersgd:2")
    monkeypatch.setattr(running.backend, "ddp_options", lambda: {"bucket_cap_mb": 5})
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    assert (model.bucket_bytes_cap, len(model._comm_hooks)) == (5 << 20, 1)
    assert running.record.as_dict("running")["gradients"]["compress"] == "powersgd:2"
    assert DistributedDataParallel(torch.nn.Linear(2, 2), bucket_cap_mb=7).bucket_bytes_cap == 7 << 20
    cpudist.shutdown()
    assert DistributedDataParallel.__init__.__module__ == "torch.nn.parallel.distributed"


@pytest.mark.parametrize(
    ("seconds", "step", "scheme", "more"),
    [(0.09, 1.0, "none", False), (0.19, 1.0, "bf16", False), (0.8, 2.0, "bf16", True)],
)
def test_what_auto_takes(seconds: float, step: float, scheme: str, more: bool) -> None:
    found, why = measured._choice(seconds, step)
    assert (found, "int8 or powersgd spare more" in why) == (scheme, more)


@pytest.mark.versions
@pytest.mark.parametrize("scheme", ["none", "bf16"])
def test_auto_chooses_after_the_first_steps(
    alone: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    """A hook is registered after a backward pass that is averaged, where it is needed; also under autocast."""
    hooked: list[torch.nn.Module] = []

    def register(model: Any, group: Any, chosen: str) -> None:
        hooked.append(model)
        model.register_comm_hook(None, allreduce_hook)

    running = job.require()
    running.communication.world = replace(running.world, node_count=2)
    monkeypatch.setattr(type(running.backend), "compressions", frozenset({"bf16"}))
    monkeypatch.setattr(running.backend, "_register_hook", register)
    monkeypatch.setattr(measured, "_seconds_of_sum", lambda group, count: 0.0 if scheme == "none" else 1e3)
    optimized, _ = cpudist.optimize(torch.nn.Linear(2, 2), None, torch.bfloat16, keep_memory=False)
    model = cpudist.wrap(optimized, compress="auto")
    for step in range(8):
        model.eval()(torch.ones(1, 2))
        model.train()(torch.ones(1, 2))  # for the log; only rank 0 may do so
        with model.no_sync():
            model.train()(torch.ones(1, 2)).sum().backward()
        assert running.record.compression == ("auto" if step < 5 else scheme), step
        model(torch.ones(1, 2)).sum().backward()
    assert hooked == ([model] if scheme == "bf16" else [])
    assert model.module.weight.grad.dtype is torch.float32
    assert f"compression by auto takes {scheme}: the gradients" in capsys.readouterr().err
