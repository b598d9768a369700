"""What `--backend xla` would compute on, and what the runtime's variables about devices mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpudist.backends.xla import devices, versions
from cpudist.doctor.finding import Finding
from cpudist.errors import UserError
from cpudist.machine.files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Nothing where torch_xla is not installed, or is not for this torch, which the versions' check says."""
    if versions.missing() is None:
        yield from found(env)


def found(env: Mapping[str, str]) -> Iterator[Finding]:
    """What is chosen with these variables, and what stands in the way of faster devices."""
    try:
        choice = devices.choose(None, env)
        lacking = devices.lacks(choice.kind)
    except UserError as error:
        reason, _, remedy = str(error).partition("; ")
        yield Finding("warning", "xla", f"--backend xla would fail: {reason}", remedy)
        return
    meanings = [f"{name}={meaning}" for name, meaning in devices.explained(env).items()]
    what = "; ".join([f"--backend xla computes on {choice.kind.upper()}: {choice.because}", *meanings])
    if lacking is not None:
        yield Finding("warning", "xla", f"{what}, and would fail", lacking)
        return
    yield Finding("ok", "xla", what)
    if choice.kind == "cpu" and "PJRT_DEVICE" not in env:
        yield from _left_out()


def _left_out() -> Iterator[Finding]:
    """Devices that this host has, and that the runtime cannot use as it is installed."""
    for kind in ("tpu", "cuda"):
        number, lacking = devices.count(kind), devices.lacks(kind)
        if number and lacking:
            yield Finding("warning", "xla", f"{number} {kind.upper()} devices are here, and not used", lacking)
