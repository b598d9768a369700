"""in_turn.py where ``device="cuda"`` is cuda_stand_in.cpp: a plugin that calls itself cuda, and computes on the CPU."""

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

from cpudist.backends.xla import gpu

sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # the plugin uses functions of torch_xla's module
library = Path(tempfile.mkdtemp()) / "plugin.so"
source = Path(__file__).with_suffix(".cpp")
subprocess.run(["g++", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
gpu.lacks = lambda: None
gpu.library = lambda: library
runpy.run_path(str(source.with_name("in_turn.py")), run_name="__main__")
