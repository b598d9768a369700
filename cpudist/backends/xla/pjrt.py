"""Choose PJRT's devices before torch_xla is imported, because torch_xla reads the choice at its import.

Source: PyTorch/XLA 2.8, docs/source/learn/pjrt.md and torch_xla/runtime.py. torch_xla 2.8's own plugin for GPUs was not
released; JAX publishes the same plugin of XLA as `jax-cuda12-pjrt`. A newer plugin has a newer PJRT, which rejects
torch_xla's calls. torch_xla 2.9 rejects GPUs.
"""

import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Literal

from cpudist.backends.xla import mesh
from cpudist.errors import UserError, cause_and_remedy
from cpudist.patching.undo import Changes

KINDS = ("cpu", "cuda", "tpu")

# The torch_xla to install for each release of torch. PyTorch/XLA ended with 2.9.
_FITTING = {"2.8": "torch_xla==2.8.1", "2.9": "torch_xla==2.9.0"}
_INSTALL_BOTH = "pip install torch==2.9.0 torch_xla==2.9.0"
_PLUGIN, _FITTING_PLUGIN = "jax-cuda12-pjrt", "0.6.2"
_INSTALL_PLUGIN = "pip install 'cpudist[xla-cuda]'"

# Prefixes of the runtime's environment variables for devices.
_VARIABLES = ("PJRT_", "CPU_NUM_DEVICES", "GPU_NUM_DEVICES", "TPU_", "XLA_USE_SPMD", "XLA_AUTO_SPMD")

_ON = ("1", "ON", "YES", "TRUE", "Y")  # values that the runtime reads as true

_started_with: tuple[str, str, bool] | None = None  # (kind, CPU_NUM_DEVICES, has mesh) of the first job


@dataclass(frozen=True)
class Choice:
    """The kind of device, one of `KINDS`, and the reason for choosing it, for the user to read."""

    kind: str
    because: str


def missing() -> str | None:
    """Return why torch_xla does not fit this torch, with the pip command as remedy; None if it fits."""
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
    """Return why PyTorch/XLA cannot be used here, with the remedy; None if it can. See `choose` for the arguments."""
    if reason := missing():
        return reason
    try:
        return lacks(choose(asked, variables).kind)
    except UserError as error:
        return str(error)


def choose(asked: str | None, variables: Mapping[str, str]) -> Choice:
    """Return the kind of device from ``--device`` (`asked`), else from PJRT_DEVICE, else the fastest of this host.

    Raise `UserError` if PJRT_DEVICE is none of `KINDS` (GPU is read as cuda), or contradicts ``--device``.
    """
    said = variables.get("PJRT_DEVICE", "").split("_")[0].lower()
    said = "cuda" if said == "gpu" else said
    if said and said not in KINDS:
        raise UserError(f"PJRT_DEVICE={variables['PJRT_DEVICE']} is not known here; set it to CPU, CUDA or TPU")
    if asked and said and asked != said:
        raise UserError(f"--device {asked} contradicts PJRT_DEVICE={variables['PJRT_DEVICE']}; leave one of them out")
    if asked or said:
        return Choice(asked or said, "--device says so" if asked else "PJRT_DEVICE says so")
    for kind, name in (("tpu", "TPU"), ("cuda", "GPU")):
        if count(kind) and lacks(kind) is None:
            return Choice(kind, f"PJRT_DEVICE and --device are not set, and a {name} is here")
    return Choice("cpu", "PJRT_DEVICE and --device are not set, and no TPU or GPU that PyTorch/XLA could use is here")


def check_variables(variables: Mapping[str, str], ranks: int, *, meshed: bool) -> None:
    """Check that the runtime's variables for SPMD fit the job; see `check_one_program` for the errors."""
    for name in ("XLA_AUTO_SPMD", "XLA_USE_SPMD"):
        if variables.get(name, "") in _ON:
            check_one_program(name, ranks, auto=name == "XLA_AUTO_SPMD", meshed=meshed)


def check_one_program(asked: str, ranks: int, *, auto: bool, meshed: bool) -> None:
    """Raise `UserError` if `asked`, a variable or call, must not turn on SPMD. `auto`: the compiler chooses shards."""
    if meshed and auto:
        raise UserError(f"{asked} lets the compiler choose the sharding, which --mesh sets; leave one of them out")
    if not meshed and ranks > 1:
        why = f"{asked} makes one program over the devices of one runtime, and this job has {ranks} ranks"
        raise UserError(f"{why}, each with a device of its own; leave {asked} out, or start one process")


def set_variables(choice: Choice, mesh_text: str | None, changes: Changes) -> None:
    """Set the runtime's environment variables for the devices of a job, until `changes` are undone.

    The runtime reads them only once. UserError if this job and an earlier one differ in devices or in having a mesh.
    """
    global _started_with
    changes.variable("PJRT_DEVICE", choice.kind.upper())
    if choice.kind == "cuda":
        changes.variable("PJRT_DYNAMIC_PLUGINS", "1")
        changes.default_variable("XLA_FALLBACK_CPU", "1")  # the CPU computes operations that XLA cannot lower
        flags = os.environ.get("XLA_FLAGS", "")
        if "xla_gpu_cuda_data_dir" not in flags:
            changes.variable("XLA_FLAGS", f"{flags} --xla_gpu_cuda_data_dir={toolkit()}".strip())
    if mesh_text is not None and choice.kind == "cpu" and "CPU_NUM_DEVICES" not in os.environ:
        count = mesh.places(mesh.parse(mesh_text))
        if count is not None:
            changes.variable("CPU_NUM_DEVICES", str(count))
    wanted = choice.kind, os.environ.get("CPU_NUM_DEVICES", "1"), mesh_text is not None
    if _started_with not in (None, wanted):
        why = "PyTorch/XLA cannot change its devices, or whether --mesh is used, between jobs of a process"
        raise UserError(f"{why}; start a new process")
    _started_with = wanted


def lacks(kind: str) -> str | None:
    """Return what the runtime lacks for this kind of device, with the remedy; None if nothing is missing."""
    if kind == "tpu" and "TPU_LIBRARY_PATH" not in os.environ and importlib.util.find_spec("libtpu") is None:
        return "there is no libtpu, which drives TPUs: pip install 'torch_xla[tpu]'"
    return gpu_lacks() if kind == "cuda" else None


def gpu_lacks() -> str | None:
    """Return what is missing to compute on GPUs, with the remedy; None if nothing is missing."""
    try:
        found = version(_PLUGIN)
    except PackageNotFoundError:
        return f"{_PLUGIN}, which drives GPUs, is not installed: {_INSTALL_PLUGIN}"
    if found != _FITTING_PLUGIN or not version("torch_xla").startswith("2.8."):
        return f"{_PLUGIN} {found} does not fit torch_xla {version('torch_xla')}: {_INSTALL_PLUGIN}"
    if toolkit() is None:
        return f"there is no ptxas, which compiles for GPUs: {_INSTALL_PLUGIN}"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no NVIDIA driver (libcuda.so.1); install it, or use --device cpu"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver finds no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu"
    return None


def plugin() -> Path:
    return Path(str(distribution(_PLUGIN).locate_file("jax_plugins/xla_cuda12/xla_cuda_plugin.so")))


def toolkit() -> Path | None:
    """Return the folder with bin/ptxas and nvvm/libdevice: NVIDIA's package, or a CUDA toolkit on PATH."""
    found = shutil.which("ptxas")
    roots = [Path(entry, "nvidia", "cuda_nvcc") for entry in sys.path]
    roots += [Path(found).resolve().parents[1]] if found else []
    return next((root for root in roots if (root / "bin" / "ptxas").exists()), None)


def count(kind: str) -> int | None:
    """Return the number of this host's devices of this kind, from its device files; None for none, and for "cpu"."""
    if kind == "cpu":
        return None
    found = glob("/dev/accel*") or glob("/dev/vfio/[0-9]*") if kind == "tpu" else glob("/dev/nvidia[0-9]*")
    return len(found) or None


def own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(variables.items()) if name.startswith(_VARIABLES)}


def findings(variables: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
    """Yield the chosen device, and the reasons why faster ones are not used; see `Devices.findings`."""
    try:
        choice = choose(None, variables)
        lacking = lacks(choice.kind)
    except UserError as error:
        reason, remedy = cause_and_remedy(str(error))
        yield "warning", f"--backend xla would fail: {reason}", remedy
        return
    given = [f"{name}={value}" for name, value in own_variables(variables).items()]
    what = "; ".join([f"--backend xla computes on {choice.kind.upper()}: {choice.because}", *given])
    if lacking:
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
