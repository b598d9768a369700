"""Whether what is installed fits together."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from cpudist.doctor.finding import Finding
from cpudist.machine.files import Files

# Compiled against one release of torch, whose number theirs repeats.
_MADE_FOR_ONE_TORCH = ("intel_extension_for_pytorch", "torch_xla")

# What a job's behaviour depends on, in the line that says that all is well.
_NAMED = (
    "torch",
    "intel_extension_for_pytorch",
    "torch_xla",
    "oneccl-devel",
    "impi-rt",
    "mpi4py",
    "transformers",
    "accelerate",
    "datasets",
)


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Versions against the bounds that cpudist was tested in, and companions of torch against torch."""
    wrong = list(_outside_bounds())
    yield from wrong
    yield from _companions()
    if not wrong:
        named = [f"{name} {found}" for name in _NAMED if (found := _installed(name))]
        versions = ", ".join([f"Python {platform.python_version()}", *named])
        yield Finding("ok", "versions", f"{versions}: all in the tested range")


def companions_that_fit() -> list[str]:
    """The installed packages that a job imports beside torch, and that were made for the torch that is there."""
    torch = _release(_installed("torch"))
    return [name for name in _MADE_FOR_ONE_TORCH[:1] if _release(_installed(name)) == torch]


def _outside_bounds() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for text in requires("cpudist") or []:
        requirement = Requirement(text)
        name, bounds = requirement.name, str(requirement.specifier)
        found = _installed(name)
        marker = requirement.marker
        if marker is not None and not marker.evaluate({"extra": "" if found is None else "ccl"}):
            continue  # an extra: the absence of ccl's is named where it matters, and the others change no job
        if found is None:
            yield Finding("error", name, f"{name} is not installed", f"pip install '{name}{bounds}'")
        elif not requirement.specifier.contains(found, prereleases=True):
            yield Finding(
                "error", name, f"{name} {found} is not in the tested range {bounds}", f"pip install '{name}{bounds}'"
            )


def _companions() -> Iterator[Finding]:
    torch = _release(_installed("torch"))
    for name in _MADE_FOR_ONE_TORCH:
        found = _installed(name)
        if found and _release(found) != torch:
            yield Finding(
                "warning",
                name,
                f"{name} {found} was made for torch {_release(found)}, not {torch}: unused",
                f"pip uninstall {name}, or install the torch that it was made for",
            )


def _release(version: str | None) -> str:
    return ".".join((version or "").split(".")[:2])


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
