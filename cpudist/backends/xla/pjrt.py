"""Choose PJRT's devices before torch_xla is imported, since it reads the choice then.

Source: PyTorch/XLA 2.8, docs/source/learn/pjrt.md and torch_xla/runtime.py.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from cpudist.backends.xla import gpu, mesh
from cpudist.changes import Changes
from cpudist.errors import UserError

KINDS = ("cpu", "cuda", "tpu")

# torch's release, and the packages that pip must install with it. PyTorch/XLA ended with 2.9.
_FITTING = {"2.8": "torch_xla==2.8.1", "2.9": "torch_xla==2.9.0"}
_INSTALL_BOTH = "pip install torch==2.9.0 torch_xla==2.9.0"

# Beginnings of the names of the runtime's variables about its devices.
_VARIABLES = ("PJRT_", "CPU_NUM_DEVICES", "GPU_NUM_DEVICES", "TPU_", "XLA_USE_SPMD", "XLA_AUTO_SPMD")

_ON = ("1", "ON", "YES", "TRUE", "Y")  # values that the runtime reads as yes


_started_with: tuple[str, str, bool] | None = None  # the kind, how many, and whether they are one program


@dataclass(frozen=True)
class Choice:
    """The kind of device, one of `KINDS`, and the reason for choosing it, for the user to read."""

    kind: str
    because: str


def missing() -> str | None:
    """Return why torch_xla does not fit this torch, with the command that helps; None where it fits.

    Neither package is imported.
    """
    torch = version("torch")
    wanted = _FITTING.get(_release(torch))
    if wanted is None:
        return f"there is no torch_xla for torch {torch}; PyTorch/XLA ended with 2.9: {_INSTALL_BOTH}"
    try:
        found = version("torch_xla")
    except PackageNotFoundError:
        return f"torch_xla is not installed: pip install {wanted}"
    if _release(found) != _release(torch):
        return f"torch_xla {found} is not for torch {torch}: pip install {wanted}"
    return None


def unusable(asked: str | None, variables: Mapping[str, str]) -> str | None:
    """Return why PyTorch/XLA cannot be used here, with the remedy; None where it can. Arguments are as for `choose`."""
    if reason := missing():
        return reason
    try:
        return lacks(choose(asked, variables).kind)
    except UserError as error:
        return str(error)


def choose(asked: str | None, variables: Mapping[str, str]) -> Choice:
    """Return the kind of device of ``--device``, else of PJRT_DEVICE, else the fastest of this host.

    Args:
        asked: the value of ``--device``, one of `KINDS`; None where it is not given.
        variables: the environment.

    Raises:
        UserError: --device and PJRT_DEVICE contradict each other, or PJRT_DEVICE is not one of `KINDS`.
    """
    said = variables.get("PJRT_DEVICE", "").split("_")[0].lower()
    said = "cuda" if said == "gpu" else said
    if said and said not in KINDS:
        raise UserError(f"PJRT_DEVICE={variables['PJRT_DEVICE']} is not known here; set it to CPU, CUDA or TPU")
    if asked and said and asked != said:
        raise UserError(
            f"--device {asked} contradicts PJRT_DEVICE={variables['PJRT_DEVICE']}; leave one of the two out"
        )
    if asked or said:
        return Choice(asked or said, "--device says so" if asked else "PJRT_DEVICE says so")
    for kind, name in (("tpu", "TPU"), ("cuda", "GPU")):
        if count(kind) and lacks(kind) is None:
            return Choice(kind, f"PJRT_DEVICE and --device are not set, and a {name} is here")
    return Choice("cpu", "PJRT_DEVICE and --device are not set, and no TPU or GPU that PyTorch/XLA could use is here")


def check_variables(variables: Mapping[str, str], ranks: int, *, meshed: bool) -> None:
    """Check that the runtime's variables fit the job's form; errors are those of `check_one_program`."""
    for name in ("XLA_AUTO_SPMD", "XLA_USE_SPMD"):
        if variables.get(name, "") in _ON:
            check_one_program(name, ranks, auto=name == "XLA_AUTO_SPMD", meshed=meshed)


def check_one_program(asked: str, ranks: int, *, auto: bool, meshed: bool) -> None:
    """Check that a job may be one program as `asked`, a variable or a call, where the compiler may choose (`auto`).

    Raises:
        UserError: --mesh makes one program of it (`meshed`) in another way, or it has several ranks.
    """
    if meshed and auto:
        raise UserError(f"{asked} lets the compiler choose how tensors lie; leave that, or --mesh, out")
    if not meshed and ranks > 1:
        raise UserError(
            f"{asked} makes one program over the devices of one runtime and works beside no other process group, and "
            f"this job has {ranks} ranks, each with a device of its own; leave that out, or start one process"
        )


def set_variables(choice: Choice, mesh_text: str | None, changes: Changes) -> None:
    """Set the variables by which the runtime finds the devices of a job, until `changes` are undone.

    Raises:
        UserError: the mesh is wrong, or an earlier job of this process has started the runtime with other devices. It
            lives as long as its process, and reads its devices, and whether it is one program, only once.
    """
    global _started_with
    changes.variable("PJRT_DEVICE", choice.kind.upper())
    if choice.kind == "cuda":
        changes.variable("PJRT_DYNAMIC_PLUGINS", "1")
        changes.default_variable("XLA_FALLBACK_CPU", "1")  # what XLA cannot lower is computed by torch on the CPU
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_gpu_cuda_data_dir" not in flags:
            changes.variable("XLA_FLAGS", f"{flags} --xla_gpu_cuda_data_dir={gpu.toolkit()}".strip())
    if mesh_text is not None and choice.kind == "cpu" and "CPU_NUM_DEVICES" not in os.environ:
        count = mesh.places(mesh.parse(mesh_text))
        if count is not None:
            changes.variable("CPU_NUM_DEVICES", str(count))
    wanted = choice.kind, os.environ.get("CPU_NUM_DEVICES", "1"), mesh_text is not None
    if _started_with not in (None, wanted):
        raise UserError(
            "PyTorch/XLA cannot change its devices or take a --mesh later in one process; start another one"
        )
    _started_with = wanted


def lacks(kind: str) -> str | None:
    """Return what the runtime lacks for this kind of device, with the remedy; None where it has all."""
    if kind == "tpu" and "TPU_LIBRARY_PATH" not in os.environ and importlib.util.find_spec("libtpu") is None:
        return "there is no libtpu, which drives TPUs: pip install 'torch_xla[tpu]'"
    return gpu.lacks() if kind == "cuda" else None


def count(kind: str) -> int | None:
    """Return how many devices of this kind this host has, by its device files; None for none, and for "cpu"."""
    if kind == "cpu":
        return None
    found = glob("/dev/accel*") or glob("/dev/vfio/[0-9]*") if kind == "tpu" else glob("/dev/nvidia[0-9]*")
    return len(found) or None


def own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the runtime's variables about its devices that are set."""
    return {name: value for name, value in sorted(variables.items()) if name.startswith(_VARIABLES)}


def findings(variables: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
    """Yield the choice with these variables, and the obstacles to faster devices; see `Devices.findings`."""
    try:
        choice = choose(None, variables)
        lacking = lacks(choice.kind)
    except UserError as error:
        reason, _, remedy = str(error).partition("; ")
        yield "warning", f"--backend xla would fail: {reason}", remedy
        return
    given = [f"{name}={value}" for name, value in own_variables(variables).items()]
    what = "; ".join([f"--backend xla computes on {choice.kind.upper()}: {choice.because}", *given])
    if lacking is not None:
        yield "warning", f"{what}, and would fail", lacking
        return
    yield "ok", what, ""
    if choice.kind == "cpu" and "PJRT_DEVICE" not in variables:
        for kind in ("tpu", "cuda"):
            number, lacking = count(kind), lacks(kind)
            if number and lacking:
                yield "warning", f"{number} {kind.upper()} devices are here, and not used", lacking


def _release(number: str) -> str:
    """Return the release of a version: "2.8" for "2.8.1+cu128"."""
    return ".".join(number.split(".")[:2])
