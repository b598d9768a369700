"""Runs one program in several jobs, one after the other in the same processes: `in_turn.py PROGRAM FOLDER JOB …`.

A JOB is the arguments of `cpudist.init` as JSON; "made up" is xla on devices that the runtime connects. The program's
arguments are the job's "words", if it has any, otherwise a folder of the job's own in FOLDER.
"""

import json
import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import cpudist
from cpudist.backends.xla import pjrt


def use_stand_in(folder: Path) -> None:
    """Let ``device="cuda"`` be cuda_stand_in.cpp: a plugin that calls itself cuda, and computes on the CPU."""
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # the plugin uses functions of torch_xla's module
    library, source = folder / "plugin.so", Path(__file__).with_name("cuda_stand_in.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    pjrt.gpu_lacks = lambda: None
    pjrt.plugin = lambda: library


init, (program, folder, *jobs) = cpudist.init, sys.argv[1:]
for number, job in enumerate(jobs):
    if job == "made up":
        import made_up

        made_up.connect()
    options = {"backend": "xla"} if job == "made up" else json.loads(job)
    if options.get("device") == "cuda":
        use_stand_in(Path(folder))
    sys.argv[1:] = options.pop("words", [f"{folder}/{number}"])
    cpudist.init = partial(init, **options)
    runpy.run_path(program, run_name="__main__")
    cpudist.shutdown()
