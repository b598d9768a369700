"""Which torch_xla fits the torch that is installed, found out without importing either."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# torch's release -> what pip is to install beside it. The last ones: PyTorch/XLA ended with 2.9.
FITS = {"2.8": "torch_xla==2.8.1", "2.9": "torch_xla==2.9.0"}
_ANEW = "pip install torch==2.9.0 torch_xla==2.9.0"


def release(number: str) -> str:
    """The release that a version belongs to: "2.8" for "2.8.1+cu128"."""
    return ".".join(number.split(".")[:2])


def missing() -> str | None:
    """Why torch_xla cannot be used beside this torch, with the command that installs what can; None where it can."""
    torch = version("torch")
    wanted = FITS.get(release(torch))
    if wanted is None:
        return f"there is no torch_xla for torch {torch}; PyTorch/XLA ended with 2.9: {_ANEW}"
    try:
        found = version("torch_xla")
    except PackageNotFoundError:
        return f"torch_xla is not installed: pip install {wanted}"
    if release(found) != release(torch):
        return f"torch_xla {found} is not for torch {torch}: pip install {wanted}"
    return None
