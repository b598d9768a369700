"""A device of torch's PrivateUse1, stand_in.cpp: torch's accelerator in a process that has called `register`.

stand_in.py PROGRAM FOLDER BACKEND … runs a program on several backends, one after the other in the same processes.
"""

import hashlib
import importlib.util
import runpy
import sys
import sysconfig
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

import cpudist
from cpudist import compiler

SOURCE = Path(__file__).with_suffix(".cpp")
STREAM = SimpleNamespace(synchronize=lambda: None)  # of checkpoints; work is complete when it is given


class Module:
    """torch.stand_in, with the functions that autocast and checkpoints call."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    current_device = staticmethod(lambda: 0)
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])
    current_stream = staticmethod(lambda: STREAM)
    stream = nullcontext
    _is_in_bad_fork = staticmethod(lambda: False)


def _command(cxx: compiler.Compiler, target: Path) -> list[str]:
    folder = Path(torch.__file__).parent
    includes = (folder / "include", folder / "include/torch/csrc/api/include", sysconfig.get_path("include"))
    return [
        *(*cxx.command, "-O0", "-std=c++20", "-fPIC", "-shared", "-DTORCH_EXTENSION_NAME=stand_in"),
        *(f"-isystem{path}" for path in includes),
        *("-o", str(target), str(SOURCE), f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch_python"),
    ]


def library() -> Path:
    """Return the compiled module; it takes a minute the first time."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    return compiler.ensure(compiler.Library("stand_in.so", "the stand-in device", "a minute", key, _command))


def register() -> None:
    """Make the device torch's accelerator, with a process group of its own."""
    torch.utils.rename_privateuse1_backend("stand_in")
    spec = importlib.util.spec_from_file_location("stand_in", library())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch._register_device_module("stand_in", Module)
    torch.utils.generate_methods_for_privateuse1_backend()
    dist.Backend.register_backend(
        "stand_in_dist", lambda *place: module.group(dist.ProcessGroupGloo(*place)), devices=["stand_in"]
    )


if __name__ == "__main__":
    register()
    init, (program, folder, *backends) = cpudist.init, sys.argv[1:]
    for backend in backends:
        sys.argv[1:] = [f"{folder}/{backend}"]
        cpudist.init = partial(init, backend)
        runpy.run_path(program, run_name="__main__")
        cpudist.shutdown()
