"""Whether what is installed fits together."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from cpudist.doctor.finding import Finding
from cpudist.machine.files import Files

# Compiled against one release of torch, whose number theirs repeats.
_MADE_FOR_ONE_TORCH = ("intel_extension_for_pytorch", "torch_xla")


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Versions against the bounds that cpudist was tested in, and companions of torch against torch."""
    wrong = list(_outside_bounds())
    yield from wrong
    yield from _companions()
    if not wrong:
        torch = _installed("torch")
        yield Finding("ok", "versions", f"Python {platform.python_version()}, torch {torch}: all in the tested range")


def _outside_bounds() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    for text in requires("cpudist") or []:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue  # an extra: its absence is named where it matters
        name, bounds = requirement.name, str(requirement.specifier)
        found = _installed(name)
        if found is None:
            yield Finding("error", name, f"{name} is not installed", f"pip install '{name}{bounds}'")
        elif not requirement.specifier.contains(found, prereleases=True):
            yield Finding(
                "error", name, f"{name} {found} is not in the tested range {bounds}", f"pip install '{name}{bounds}'"
            )


def _companions() -> Iterator[Finding]:
    torch = (_installed("torch") or "").split(".")[:2]
    for name in _MADE_FOR_ONE_TORCH:
        found = _installed(name)
        if found and found.split(".")[:2] != torch:
            yield Finding(
                "warning",
                name,
                f"{name} {found} was made for torch {'.'.join(found.split('.')[:2])}, not {'.'.join(torch)}: unused",
                f"pip uninstall {name}, or install the torch that it was made for",
            )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
