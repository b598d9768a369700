"""Stand-in for Intel's binding under its two names, for scripts that import it.

Intel's binding, `oneccl_bindings_for_pytorch`, has no release after torch 2.8. Scripts import it only to register
``ccl`` with torch. Libraries check for it: if DeepSpeed (0.19) can import it, DeepSpeed compiles its own backend
against Intel's oneCCL. So the stand-in is no module on disk. After `import torch` (register.py), a finder provides it
to import statements of the user's code only.

If Intel's package is installed, scripts import that package, except during a job on ccl. In such a job the package
would replace cpudist's ``ccl`` in torch.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import spec_from_loader
from pathlib import Path
from types import FrameType, ModuleType

from cpudist.script.frames import is_user_code

_IMPORT_NAMES = ("oneccl_bindings_for_pytorch", "torch_ccl")  # the second name was used before torch 1.13
_DISTRIBUTIONS = ("oneccl_bind_pt", "oneccl_bindings_for_pytorch")


def offer_to_scripts() -> None:
    """Make import statements of the user's code find the stand-in if Intel's package is not installed."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def hide_installed(hidden: bool = True) -> None:
    """Make all imports of Intel's names return the stand-in, even if Intel's package is installed, or undo this."""
    _finder.for_all = hidden
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _finder]
    sys.meta_path.insert(0 if hidden else len(sys.meta_path), _finder)


def installed() -> str | None:
    """Return the name and version of Intel's binding; None if it is not installed."""
    for name in _DISTRIBUTIONS:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return None


class _Finder(MetaPathFinder, Loader):
    """Find the stand-in under Intel's names: for imports by the user's code or, if `for_all`, for all imports."""

    for_all = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _IMPORT_NAMES or not (self.for_all or _is_imported_by_user()):
            return None
        return spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Set the attributes of Intel's module from which scripts read its folder: `cwd` and `__file__`."""
        here = Path(__file__).absolute()  # beside it is env/setvars.sh, which Intel's guides source
        module.__doc__ = "Stands for Intel's package: the backend ccl is cpudist's."
        module.__file__ = str(here)
        vars(module)["cwd"] = str(here.parent)


_finder = _Finder()


def _is_imported_by_user() -> bool:
    """Return whether an import statement of the user's code runs; False for a call of `importlib.util.find_spec`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib._bootstrap"):
        frame = frame.f_back
    return frame is not None and is_user_code(frame)
