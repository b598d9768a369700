"""A real control group for a test: of version 1, one in each hierarchy, or of version 2."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_TOP = Path("/sys/fs/cgroup")
_KINDS = ("cpu", "cpuset", "memory")


class ControlGroup:
    """A group with no limits yet."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def limit(self, kind: str, **files: str) -> None:
        """Write the file of the version that is there; two underscores in a name stand for a dot."""
        for name, text in files.items():
            file = self._folders[kind] / name.replace("__", ".")
            if file.exists():
                file.write_text(text)

    def join(self, pid: int) -> None:
        """Move a running process into this group; what it has allocated before counts where it was."""
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def inside(self, command: list[str]) -> list[str]:
        """The command that runs `command` in this group."""
        join = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in set(self._folders.values()))
        return ["sh", "-c", f'{join} exec "$@"', "sh", *command]


@contextmanager
def control_group() -> Iterator[ControlGroup]:
    """Make one, and remove it afterwards; skip where that is not allowed."""
    name = f"cpudist-test-{uuid.uuid4().hex[:8]}"
    unified = (_TOP / "cgroup.controllers").exists()
    folders = {kind: _TOP / ("" if unified else kind) / name for kind in _KINDS}
    try:
        for folder in set(folders.values()):
            folder.mkdir()
        if not unified:
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folders["cpuset"] / file).write_text((folders["cpuset"].parent / file).read_text())
    except OSError as error:
        for folder in set(folders.values()):
            if folder.is_dir():
                folder.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        yield ControlGroup(folders)
    finally:
        for folder in set(folders.values()):
            folder.rmdir()
