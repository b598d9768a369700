"""Which devices PJRT takes, decided before torch_xla is imported, and what the variables about them mean.

Source: PyTorch/XLA 2.8, docs/source/learn/pjrt.md and torch_xla/runtime.py.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from importlib.metadata import PackageNotFoundError, version

from cpudist.errors import UserError

KINDS = ("cpu", "cuda", "tpu")

_CUDA_PLUGIN = "torch_xla_cuda_plugin"

# The runtime's variables that say which devices there are: where one is set, the run record says what it means.
MEANINGS = {
    "PJRT_DEVICE": "the kind of device",
    "CPU_NUM_DEVICES": "devices that each process makes of its CPU (one, if unset)",
    "GPU_NUM_DEVICES": "GPUs of each host",
    "TPU_PROCESS_BOUNDS": "how the processes lie in the TPU's grid, as x,y,z",
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "how the chips of a process lie in the TPU's grid, as x,y,z",
    "TPU_VISIBLE_CHIPS": "chips of this host that the process may use",
    "PJRT_LOCAL_PROCESS_COUNT": "processes on this host, as the runtime counts them",
}


@dataclass(frozen=True)
class Choice:
    """The kind of device, one of `KINDS`, and how it came to be chosen, for the user to read."""

    kind: str
    because: str


def choose(asked: str | None, variables: Mapping[str, str]) -> Choice:
    """What `--device` says, else PJRT_DEVICE, else the best that is there.

    Raises:
        UserError: --device and PJRT_DEVICE contradict each other, or name what the runtime does not have.
    """
    said = variables.get("PJRT_DEVICE", "").split("_")[0].lower()
    said = "cuda" if said == "gpu" else said
    if said and said not in KINDS:
        raise UserError(f"PJRT_DEVICE={variables['PJRT_DEVICE']} is not known here; set it to CPU, CUDA or TPU")
    if asked is not None and asked not in KINDS:
        raise UserError(f"there is no device {asked!r}; --device takes {', '.join(KINDS)}")
    if asked and said and asked != said:
        raise UserError(
            f"--device {asked} contradicts PJRT_DEVICE={variables['PJRT_DEVICE']}; leave one of the two out"
        )
    if asked or said:
        return Choice(asked or said, "--device says so" if asked else "PJRT_DEVICE says so")
    if glob("/dev/accel*") + glob("/dev/vfio/[0-9]*") and lacks("tpu") is None:
        return Choice("tpu", "PJRT_DEVICE and --device are not set, and a TPU is here")
    if glob("/dev/nvidia[0-9]*") and lacks("cuda") is None:
        return Choice("cuda", "PJRT_DEVICE and --device are not set, and a GPU is here")
    return Choice("cpu", "PJRT_DEVICE and --device are not set, and no TPU or GPU that PyTorch/XLA could use is here")


def lacks(kind: str) -> str | None:
    """What is not installed that the runtime needs for this kind of device, with the remedy; None where it is."""
    if kind == "tpu" and "TPU_LIBRARY_PATH" not in os.environ and importlib.util.find_spec("libtpu") is None:
        return "there is no libtpu, which drives TPUs: pip install 'torch_xla[tpu]'"
    if kind == "cuda":
        try:
            version(_CUDA_PLUGIN)
        except PackageNotFoundError:
            return (
                f"{_CUDA_PLUGIN}, which drives GPUs, is not installed; if your release of PyTorch/XLA has none, "
                "use --device cpu, or torch's own CUDA"
            )
    return None


def count(kind: str) -> int | None:
    """How many devices of this kind this host has, by its device files; None where each process makes its own."""
    if kind == "cpu":
        return None
    found = glob("/dev/accel*") or glob("/dev/vfio/[0-9]*") if kind == "tpu" else glob("/dev/nvidia[0-9]*")
    return len(found) or None


def explained(variables: Mapping[str, str]) -> dict[str, str]:
    """The runtime's variables that are set, each with its meaning."""
    return {name: f"{variables[name]}: {meaning}" for name, meaning in MEANINGS.items() if name in variables}
