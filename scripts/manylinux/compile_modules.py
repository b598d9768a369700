"""Compile the libraries of wheels, for this environment's torch: compile_modules.py FOLDER PYTHON...

FOLDER has a folder with cpudist's sources for each Python, named as its wheel's tag (cp311). torch's headers are the
same for every Python, so only Python's own change: $CXX, made by old_symbols.py, takes them from $PYTHON_HEADERS.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cpudist import compiler
from cpudist.backends.ccl import compilation, toolchain
from cpudist.optimization import operators

ASK = 'import sys, sysconfig; print("cp%d%d" % sys.version_info[:2], sysconfig.get_path("include"))'


def main(folder: Path, pythons: list[str]) -> None:
    """Compile the modules for each Python: without oneCCL, and where it is installed, with it.

    The latter finds its libraries relative to its own place in an environment.
    """
    beside = f"$ORIGIN/{compilation.LIBRARIES}"
    modules = [compilation.module(None)]
    if oneccl := toolchain.find_oneccl():
        # MPICH's package has its libfabric in a folder of its own.
        modules.append(compilation.module(oneccl, f"{beside}:{beside}/mpich"))
    torch = compilation.prebuilt_for().rpartition("-")[0]
    for python in pythons:
        answer = subprocess.run([python, "-c", ASK], capture_output=True, text=True, check=True)
        tag, os.environ["PYTHON_HEADERS"] = answer.stdout.split()
        package = folder / tag / "cpudist"
        for module in modules:
            compile_to(module, package / "backends/ccl/prebuilt" / f"{torch}-{tag}" / module.file)
        kernel = package / "optimization/prebuilt" / torch / operators.FILE
        compile_to(operators.library(), kernel)


def compile_to(library: compiler.Library, target: Path) -> None:
    """Compile into a cache of its own: the name of its folder does not depend on $PYTHON_HEADERS."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        shutil.copy(compiler.ensure(library, Path(cache)), target)
    print(target)


main(Path(sys.argv[1]), sys.argv[2:])
