"""The kernel's files (/sys, /proc) of this machine, or of another one from a copy, a folder or a tar archive."""

from __future__ import annotations

import tarfile
from pathlib import Path, PurePosixPath

from cpudist.errors import UserError

_MARK = "devices/system/cpu"


class Files:
    """Text files by their path from the root, such as ``sys/devices/system/cpu/online``."""

    def __init__(self, root: Path = Path("/"), only_sys: bool = False) -> None:
        """Describe this machine, or a copy in the folder `root`: of /, or with `only_sys` of /sys alone."""
        self._root, self._before = root, "sys/" if only_sys else ""

    def read(self, path: str) -> str | None:
        """Return the file's text without white space around it; None if it is missing or may not be read."""
        try:
            return _text(self._path(path).read_bytes())
        except OSError:  # some of the kernel's files exist and cannot be read
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names of a folder's entries; none if there is no such folder."""
        try:
            return sorted(entry.name for entry in self._path(folder).iterdir())
        except OSError:
            return []

    def _path(self, path: str) -> Path:
        if not path.startswith(self._before):
            raise FileNotFoundError(path)
        return self._root / path.removeprefix(self._before)


class _Archive(Files):
    """Files of a tar archive, such as hwloc-gather-topology makes; it is not unpacked."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__()
        self._texts = texts

    def read(self, path: str) -> str | None:
        return self._texts.get(path)

    def names(self, folder: str) -> list[str]:
        below = f"{folder}/"
        return sorted({path[len(below) :].split("/")[0] for path in self._texts if path.startswith(below)})


def open_copy(path: Path) -> Files:
    """Open a copy of `/`, of `/sys` or of a folder that contains `sys`, as a folder or a tar archive.

    Raises:
        UserError: the copy has no sys/devices/system/cpu.
    """
    if not path.is_dir():
        with tarfile.open(path) as archive:
            return _Archive(_texts(archive, path))
    found = next((match for before in ("", "*/", "*/*/") for match in sorted(path.glob(before + _MARK))), None)
    if found is None:
        raise _no_copy(path)
    sys = found.absolute().parents[2]
    return Files(sys.parent) if sys.name == "sys" else Files(sys, only_sys=True)


def _texts(archive: tarfile.TarFile, path: Path) -> dict[str, str]:
    members = {str(PurePosixPath(member.name)).lstrip("/"): member for member in archive if member.isfile()}
    inside = next((name for name in members if f"{_MARK}/" in f"/{name}"), None)
    if inside is None:
        raise _no_copy(path)
    before = inside[: inside.index(_MARK)]  # "", "sys/", "host/sys/"
    root, added = (before.removesuffix("sys/"), "") if before.endswith("sys/") else (before, "sys/")
    texts = {}
    for name, member in members.items():
        content = archive.extractfile(member) if name.startswith(root) else None
        if content is not None:
            texts[added + name.removeprefix(root)] = _text(content.read())
    return texts


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace").strip("\0 \t\n")


def _no_copy(path: Path) -> UserError:
    return UserError(
        f"{path} holds no sys/{_MARK}: copy the machine's /sys/devices/system, or make an archive with"
        " hwloc-gather-topology"
    )
