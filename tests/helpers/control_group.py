"""Make a real control group for a test: one in each hierarchy of cgroup version 1, or one of version 2."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_TOP = Path("/sys/fs/cgroup")
_KINDS = ("cpu", "cpuset", "memory")


class ControlGroup:
    """A control group without limits."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    def limit(self, kind: str, **files: str) -> None:
        """Write texts to files of the controller `kind`; a name has two underscores for a dot.

        Files that this machine's version of cgroups does not have are left out.
        """
        for name, text in files.items():
            file = self._folders[kind] / name.replace("__", ".")
            if file.exists():
                file.write_text(text)

    def join(self, pid: int) -> None:
        """Move a running process into this group. Memory that it has allocated still counts in its old group."""
        for folder in set(self._folders.values()):
            (folder / "cgroup.procs").write_text(str(pid))

    def inside(self, command: list[str]) -> list[str]:
        join = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in set(self._folders.values()))
        return ["sh", "-c", f'{join} exec "$@"', "sh", *command]


@contextmanager
def control_group() -> Iterator[ControlGroup]:
    """Make a control group and remove it afterwards. Skips the test where this user may not make one."""
    name = f"cpudist-test-{uuid.uuid4().hex[:8]}"
    unified = (_TOP / "cgroup.controllers").exists()
    folders = {kind: _TOP / ("" if unified else kind) / name for kind in _KINDS}
    with ExitStack() as made:
        try:
            for folder in set(folders.values()):
                folder.mkdir()
                made.callback(folder.rmdir)
            for file in () if unified else ("cpuset.cpus", "cpuset.mems"):
                (folders["cpuset"] / file).write_text((folders["cpuset"].parent / file).read_text())
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        yield ControlGroup(folders)
