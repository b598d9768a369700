"""Read the kernel's files (/sys, /proc) of this machine, or a copy of another machine's."""

from pathlib import Path


class Files:
    """Text files by their path from the root, such as ``sys/devices/system/cpu/online``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        """Return the file's text without white space around it; None if it is missing or may not be read."""
        try:
            text = (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:  # some of the kernel's files exist and cannot be read
            return None
        return text.strip("\0 \t\n")

    def names(self, folder: str) -> list[str]:
        """Return the names of a folder's entries; none if there is no such folder."""
        try:
            return sorted(entry.name for entry in (self._root / folder).iterdir())
        except OSError:
            return []
