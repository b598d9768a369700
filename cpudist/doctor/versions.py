"""Check whether the versions of the installed packages fit together."""

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from cpudist.backends import plugins
from cpudist.findings import Finding, Level
from cpudist.topology.kernel_files import Files

_IPEX = "intel_extension_for_pytorch"

# Packages that a job's behaviour depends on; their versions are shown.
_NAMED = ("torch", "oneccl-cpu-devel", "impi-rt", "mpi4py", "transformers", "accelerate", "datasets")

_EXTRAS = ("ccl", "hf", "notebook")  # Extras whose packages change a job's behaviour.


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Compare versions with the bounds in cpudist's metadata, and companions of torch with torch."""
    wrong = list(_outside_bounds())
    yield from wrong
    yield from _companions()
    if not wrong:
        named = [f"{name} {found}" for name in (*_NAMED, *_companion_packages()) if (found := installed(name))]
        versions = ", ".join([f"Python {platform.python_version()}", *named])
        yield Finding("ok", "versions", f"{versions}: all in the tested range")


def companions_that_fit() -> list[str]:
    """Return the extensions of torch that a job imports, if they match the installed torch's release."""
    torch = _release(installed("torch"))
    return [name for name in (_IPEX,) if _release(installed(name)) == torch]


def _outside_bounds() -> Iterator[Finding]:
    from packaging.requirements import Requirement
    from packaging.version import Version

    for text in requires("cpudist") or []:
        requirement = Requirement(text)
        name, bounds = requirement.name, str(requirement.specifier)
        found = installed(name)
        marker = requirement.marker
        extras = ("",) if found is None else _EXTRAS
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue  # usable_backends.py reports missing packages of ccl
        remedy = f"pip install '{name}{bounds}'"
        if found is None:
            yield Finding("error", name, f"{name} is not installed", remedy)
        elif not requirement.specifier.contains(found, prereleases=True):
            newer = Version(found) > min(Version(bound.version) for bound in requirement.specifier)
            level: Level = "warning" if newer and name == "torch" else "error"  # jobs run on a newer torch, and warn
            yield Finding(level, name, f"{name} {found} is not in the tested range {bounds}", remedy)


def _companions() -> Iterator[Finding]:
    torch = _release(installed("torch"))
    for name in _companion_packages():
        found = installed(name)
        if found and _release(found) != torch:
            message = f"{name} {found} was made for torch {_release(found)}, not {torch}, and is not used"
            remedy = f"pip uninstall {name}, or install the torch that it was made for"
            yield Finding("warning", name, message, remedy)


def _companion_packages() -> list[str]:
    """Return the packages that are compiled for one release of torch and have its version number."""
    return [_IPEX, *(name for backend in plugins().values() for name in backend.devices.companions)]


def _release(version: str | None) -> str:
    return ".".join((version or "").split(".")[:2])


def installed(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
