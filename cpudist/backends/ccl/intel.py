"""Intel's own binding, `oneccl_bindings_for_pytorch`: used where it fits, answered for where it is missing.

It ended with torch 2.8, but every script that was written for it imports it, for no other reason than to make the name
``ccl`` known to torch. Where it is not installed, that import gives an empty module, and ``ccl`` is ours.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_loader
from types import ModuleType

PACKAGE = "oneccl_bindings_for_pytorch"
_IMPORT_NAMES = (PACKAGE, "torch_ccl")  # the second is its name before torch 1.13
_DISTRIBUTIONS = ("oneccl_bind_pt", PACKAGE)


def binding(torch_version: str) -> str | None:
    """The version of Intel's binding when it is installed and was made for this torch, else None."""
    for name in _DISTRIBUTIONS:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        # Its C++ belongs to one torch release, which its version repeats: 2.8.0+cpu for torch 2.8.
        return found if found.split(".")[:2] == torch_version.split(".")[:2] else None
    return None


def answer_for_missing_package() -> None:
    """From now on `import oneccl_bindings_for_pytorch` works in this process, also where that is not installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # the last one: it is asked when nobody else has found the package


class _Finder(MetaPathFinder, Loader):
    """Finds an empty module under Intel's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in _IMPORT_NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Stands for Intel's package, which is not installed: the backend ccl is cpudist's."
        from cpudist.backends.ccl.register import register

        register()
