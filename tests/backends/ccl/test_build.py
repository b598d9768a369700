"""The cache: only trusted libraries are loaded, and of processes that start at the same time one compiles."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cpudist import compiler
from cpudist.compiler import Library
from cpudist.errors import UserError

LIBRARY = Library("it.so", "it", "a second", "key", lambda compiler, output: [])


def test_a_library_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "none-such")
    library = tmp_path / "cache" / "key" / "gxx-0" / "it.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert compiler.find(LIBRARY, tmp_path / "cache") == library
    for path in (library, library.parents[0], library.parents[2]):
        path.chmod(0o777)
        with pytest.raises(UserError, match=f"is not loaded: {re.escape(str(path))} can be written by other users"):
            compiler.find(LIBRARY, tmp_path / "cache")
        path.chmod(0o755)


def test_the_lock_follows_no_link(tmp_path: Path) -> None:
    folder, other = tmp_path / "cache" / "key" / "compiler", tmp_path / "precious"
    folder.mkdir(parents=True)
    other.write_text("kept")
    (folder / "lock").symlink_to(other)
    with pytest.raises(UserError, match="cannot write it to"), compiler._lock(folder, "it"):
        pass
    assert other.read_text() == "kept"


def test_the_wait_for_the_lock_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "key" / "compiler"
    monkeypatch.setattr(compiler, "_COMPILE_SECONDS", 0.01)
    with (
        compiler._lock(folder, "it"),
        pytest.raises(UserError, match="still compiles it"),
        compiler._lock(folder, "it"),
    ):
        pass


def _program(folder: Path, name: str, says: str) -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{says}\n")
    file.chmod(0o755)
    return file


@pytest.mark.job
def test_cxx_may_have_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _program(tmp_path, "ccache", '"$@"')
    gcc = _program(tmp_path, "g++", "echo 'g++ (Debian 12.2.0-14) 12.2.0'")
    clang = _program(tmp_path, "c++", "echo 'Debian clang version 14.0.6'")
    (tmp_path / "with space").mkdir()
    spaced = _program(tmp_path / "with space", "g++", "echo 'g++ (GCC) 13.1.0'")
    labels = {}
    for cxx in (gcc, f"{cache} {gcc}", f"{gcc} -m64", f"{cache} {gcc} -isystem /usr", f"'{gcc}'", clang, spaced):
        monkeypatch.setenv("CXX", str(cxx))
        found = compiler.find_compiler()
        labels[str(cxx)] = re.sub("[0-9a-f]{8}", "DIGEST", found.label), found.openmp, len(found.command)
    openmp = ("-fopenmp",)
    assert list(labels.values()) == [
        ("g++", openmp, 1),
        ("g++", openmp, 2),
        ("g++-DIGEST", openmp, 2),
        ("g++-DIGEST", openmp, 4),
        ("g++", openmp, 1),
        ("c++", (), 1),
        ("g++", openmp, 1),
    ]
    for cxx in ("none-such", f"{cache} none-such", f"none-such {gcc}", "-m64", " "):
        monkeypatch.setenv("CXX", cxx)
        assert compiler.find_compiler() is None
    monkeypatch.setenv("CXX", f"'{gcc}")
    with pytest.raises(UserError, match="correct its quotes"):
        compiler.find_compiler()


def test_a_library_of_another_compiler_serves_only_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("clang++", "g++", "g++-12345678"):
        library = tmp_path / "key" / label / "it.so"
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.find(LIBRARY, tmp_path).parent.name == "g++"
    (tmp_path / "key/g++/it.so").unlink()
    assert compiler.find(LIBRARY, tmp_path) is None, "g++ is here, and compiles its own"
    monkeypatch.setenv("CXX", "none-such")
    assert compiler.find(LIBRARY, tmp_path) is not None


@pytest.mark.job
def test_files_of_a_compile_that_was_killed_are_removed(tmp_path: Path) -> None:
    library = replace(LIBRARY, command=lambda compiler, output: ["touch", str(output)])
    found = compiler.find_compiler()
    assert found is not None
    left = tmp_path / "key" / found.label / f"{compiler._SCRATCH}x" / "file"
    left.parent.mkdir(parents=True)
    left.touch()
    assert compiler.ensure(library, tmp_path).exists()
    assert not left.parent.exists()


@pytest.mark.job
def test_two_at_once_compile_once(tmp_path: Path) -> None:
    # It compiles an empty file instead of the source, which takes a minute. Other tests load the real module.
    (tmp_path / "empty.cpp").touch()
    quick = tmp_path / "quick-g++"
    quick.write_text(f'#!/bin/bash\nexec g++ "${{@/#*unity.cpp/{tmp_path}/empty.cpp}}"\n')
    quick.chmod(0o755)
    command = [sys.executable, "-m", "cpudist", "build", "--output", str(tmp_path / "cache")]
    env = os.environ | {"CXX": str(quick)}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(errors.count("compiling the ccl backend") for _, errors in outputs) == 1, outputs
    assert len(list((tmp_path / "cache").glob("*/*/cpudist_ccl.so"))) == 1
