"""Read the kernel's files (/sys, /proc) of this machine, or a copy of another machine's."""

from __future__ import annotations

from pathlib import Path

from cpudist.errors import UserError

_MARK = "devices/system/cpu"


class Files:
    """Text files by their path from the root, such as ``sys/devices/system/cpu/online``."""

    def __init__(self, root: Path = Path("/"), only_sys: bool = False) -> None:
        """Read from `root`, which is / or a copy of it; with `only_sys` it is a copy of /sys alone."""
        self._root, self._before = root, "sys/" if only_sys else ""

    def read(self, path: str) -> str | None:
        """Return the file's text without white space around it; None if it is missing or may not be read."""
        try:
            text = self._path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:  # some of the kernel's files exist and cannot be read
            return None
        return text.strip("\0 \t\n")

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


def open_copy(path: Path) -> Files:
    """Open a copy of `/`, of `/sys` or of a folder that contains `sys`.

    Raises:
        UserError: the copy has no sys/devices/system/cpu.
    """
    found = next((match for before in ("", "*/", "*/*/") for match in sorted(path.glob(before + _MARK))), None)
    if found is None:
        raise UserError(f"it holds no sys/{_MARK}: copy the machine's /sys/devices/system")
    sys = found.absolute().parents[2]
    return Files(sys.parent) if sys.name == "sys" else Files(sys, only_sys=True)
