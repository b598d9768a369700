"""The kernel's files (/sys, /proc) of this machine, or of another one from a copy: a folder or a tar archive."""

from __future__ import annotations

import tarfile
from abc import ABC, abstractmethod
from pathlib import Path, PurePosixPath

from cpudist.errors import UserError

_MARK = "devices/system/cpu"


class Files(ABC):
    """Text files by their path from the root, such as ``sys/devices/system/cpu/online``."""

    @abstractmethod
    def read(self, path: str) -> str | None:
        """The file's text without white space around it; None where it is missing or may not be read."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """What lies in a folder; nothing where there is none."""


class Folder(Files):
    """Files below a folder; ``Folder(Path("/"))`` is this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace").strip("\0 \t\n")
        except OSError:  # some of the kernel's files exist and cannot be read
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except OSError:
            return []


class Archive(Files):
    """Files of a tar archive, such as hwloc-gather-topology makes; nothing is unpacked."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self._names: dict[str, set[str]] = {}
        for path in texts:
            parts = path.split("/")
            for depth, name in enumerate(parts):
                self._names.setdefault("/".join(parts[:depth]), set()).add(name)

    def read(self, path: str) -> str | None:
        return self._texts.get(path)

    def names(self, folder: str) -> list[str]:
        return sorted(self._names.get(folder, ()))


def open_copy(path: Path) -> Files:
    """Open a copy of sysfs: of `/`, of `/sys` or of a folder in which `sys` lies, as a folder or a tar archive.

    Raises:
        UserError: there is no sys/devices/system/cpu in it.
    """
    if path.is_dir():
        for root in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())):
            if (root / "sys" / _MARK).is_dir():
                return Folder(root)
        if (path / _MARK).is_dir():
            return Folder(path.absolute().parent) if path.name == "sys" else _Renamed(Folder(path))
        raise _no_copy(path)
    with tarfile.open(path) as archive:
        return Archive(_texts(archive, path))


class _Renamed(Files):
    """A copy of /sys under another name."""

    def __init__(self, inner: Files) -> None:
        self._inner = inner

    def read(self, path: str) -> str | None:
        return self._inner.read(path.removeprefix("sys/")) if path.startswith("sys/") else None

    def names(self, folder: str) -> list[str]:
        return self._inner.names(folder.removeprefix("sys/")) if folder.startswith("sys/") else []


def _texts(archive: tarfile.TarFile, path: Path) -> dict[str, str]:
    members = {str(PurePosixPath(member.name)).lstrip("/"): member for member in archive if member.isfile()}
    inside = next((name for name in members if f"{_MARK}/" in f"/{name}"), None)
    if inside is None:
        raise _no_copy(path)
    before = inside[: inside.index(_MARK)]  # "", "sys/", "host/sys/"
    root, sys_at_root = (before[: -len("sys/")], True) if before.endswith("sys/") else (before, False)
    texts = {}
    for name, member in members.items():
        if name.startswith(root):
            content = archive.extractfile(member)
            assert content is not None, "a regular file has content"
            inner = name[len(root) :] if sys_at_root else f"sys/{name[len(root) :]}"
            texts[inner] = content.read().decode("utf-8", errors="replace").strip("\0 \t\n")
    return texts


def _no_copy(path: Path) -> UserError:
    return UserError(
        f"{path} holds no sys/{_MARK}: copy the machine's /sys/devices/system, or make an archive with"
        " hwloc-gather-topology"
    )
