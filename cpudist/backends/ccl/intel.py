"""Stand-ins for Intel's binding under its two names, for scripts and set-up lines that import it.

Intel's binding, `oneccl_bindings_for_pytorch`, ended with torch 2.8. Scripts import it only to register ``ccl`` with
torch; guides import it to find its ``env/setvars.sh`` and source it.

cpudist installs two modules with these names. Each is one file: Python prefers a package of the same name in the same
folder, so Intel's is imported where it is installed. Neither installation touches the other's files. During a job on
ccl ours are imported in any case: Intel's would replace cpudist's ``ccl`` in torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType

_IMPORT_NAMES = ("oneccl_bindings_for_pytorch", "torch_ccl")  # the second is its name before torch 1.13
_DISTRIBUTIONS = ("oneccl_bind_pt", "oneccl_bindings_for_pytorch")


def fill(module: ModuleType) -> None:
    """Give a stand-in the attributes of Intel's module that scripts read: `cwd`, and the folder of `__file__`."""
    from cpudist.backends.ccl.register import register

    module.__doc__ = "Stands for Intel's package: the backend ccl is cpudist's."
    module.__file__ = str(Path(__file__).absolute())  # env/setvars.sh is in the same folder
    vars(module)["cwd"] = str(Path(__file__).absolute().parent)
    if "torch" in sys.modules:  # a torch that is imported later calls it itself
        register()


def hide_installed() -> None:
    """Let imports of Intel's names give ours from now on, also where Intel's package is installed."""
    show_installed()
    sys.meta_path.insert(0, _Finder())


def show_installed() -> None:
    """Take `hide_installed` back."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def installed() -> str | None:
    """Return name and version of Intel's binding where it is installed, else None."""
    for name in _DISTRIBUTIONS:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


class _Finder(MetaPathFinder, Loader):
    """Find our modules under Intel's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in _IMPORT_NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        fill(module)
