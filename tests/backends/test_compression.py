"""Schemes of compressed gradients: their names, who has them, and where there is nothing to compress."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import cpudist
from cpudist import backends, job
from cpudist.backends.compression import check_scheme
from cpudist.errors import UserError


@pytest.fixture
def gloo() -> Iterator[None]:
    cpudist.init("gloo", pin=False)
    yield
    cpudist.shutdown()


@pytest.mark.parametrize("text", ["none", "bf16", "int8", "powersgd", "powersgd:1", "powersgd:16"])
def test_schemes(text: str) -> None:
    assert check_scheme(text) == text


@pytest.mark.parametrize("text", ["", "fp16", "bf16:2", "powersgd:", "powersgd:0", "powersgd:x", "auto"])
def test_what_is_no_scheme(text: str) -> None:
    with pytest.raises(UserError, match=r"--compress .*is not known; give none, bf16, int8, powersgd"):
        check_scheme(text)


@pytest.mark.parametrize(
    ("backend", "scheme", "remedy"),
    [("gloo", "bf16", "use powersgd"), ("gloo", "int8", "use powersgd"), ("xla", "powersgd:2", "leave it out")],
)
def test_a_backend_that_has_no_such_scheme(backend: str, scheme: str, remedy: str) -> None:
    with pytest.raises(UserError, match=f"{backend} cannot compress gradients by --compress {scheme}; {remedy}"):
        backends.get(backend)().check_compression(scheme)


def test_on_one_host_nothing_is_compressed(gloo: None, capsys: pytest.CaptureFixture[str]) -> None:
    model = cpudist.wrap(torch.nn.Linear(2, 2), compress="powersgd:2")
    assert "--compress powersgd:2 changes nothing here: all ranks are on one host" in capsys.readouterr().err
    model(torch.ones(1, 2))
    gradients = job.require().record.as_dict("running")["gradients"]
    assert gradients["compress"] == "none: all ranks are on one host"
    assert (gradients["hook"], gradients["compressed_bytes"]) == (None, None)


def test_wrong_schemes_of_a_job_and_of_a_model(gloo: None) -> None:
    with pytest.raises(UserError, match="gloo cannot compress gradients by --compress int8"):
        job.require().set_compression("int8")
    with pytest.raises(UserError, match="--compress often is not known"):
        cpudist.wrap(torch.nn.Linear(2, 2), compress="often")
