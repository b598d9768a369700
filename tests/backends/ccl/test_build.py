"""What the ccl backend decides before it talks to anybody, the cache of its module, and the walls in its sources."""

import importlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jobs
import pytest
import torch

from cpudist import compiler
from cpudist.backends.ccl import ccl_group, compilation, extension, register, toolchain
from cpudist.backends.ccl.compilation import MODULE_WITHOUT_ONECCL, SOURCES
from cpudist.compiler import Library
from cpudist.errors import UserError

LIBRARY = Library("it.so", "it", "a second", "key", lambda compiler, output: ["touch", str(output)])
INTEL_MPI = {"I_MPI_HYDRA_UUID": "x", "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


def test_ranks_agree_on_the_transport_that_the_user_has_set() -> None:
    chosen = {"": (True, False), "oneccl": (False, False), "mpi": (True, True), "mpi-alone": (False, True)}
    assert {value: ccl_group.chosen_transports({value}) for value in chosen} == chosen
    for values, why in (({"pigeon"}, "is not known"), ({"", "oneccl"}, "some ranks only")):
        with pytest.raises(UserError, match=why):
            ccl_group.chosen_transports(values)


def test_mpi_carries_messages_only_in_an_mpi_world_that_is_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*INTEL_MPI, "RANK", "WORLD_SIZE", "LOCAL_RANK", "CCL_ATL_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)
    assert extension.transport() == "ofi"
    for name, value in INTEL_MPI.items():
        monkeypatch.setenv(name, value)
    assert extension.transport() == "mpi"
    monkeypatch.setenv("WORLD_SIZE", "4")  # processes that a rank has spawned
    assert extension.transport() == "ofi"
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "mpi")
    assert extension.transport() == "mpi", "what the user has set stays"
    monkeypatch.setattr(extension.rank_or_child, "started_by_rank", lambda: True)
    assert extension.transport() == "ofi", "a rank's child is not that rank"
    monkeypatch.undo()
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "ofi")
    assert extension.transport() == "ofi"


def test_only_imports_of_the_users_code_find_intels_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = (
        "import importlib.util\n"
        "found = importlib.util.find_spec('torch_ccl')\n"
        "try:\n"
        "    import torch_ccl\n"
        "except ImportError:\n"
        "    torch_ccl = None\n"
    )
    for folder, name in (("site-packages", "a_library"), ("project", "a_users_module")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path / folder)
    loaded = {**sys.modules}
    try:
        library, users = importlib.import_module("a_library"), importlib.import_module("a_users_module")
    finally:
        for name in sys.modules.keys() - loaded.keys():
            del sys.modules[name]
    assert (library.found, library.torch_ccl) == (None, None)
    assert users.found is None
    assert users.torch_ccl.cwd == str(Path(register.__file__).parent)


_BINDING = """
import cpudist
import torch.distributed as dist
from cpudist import job
cpudist.init("ccl")
import oneccl_bindings_for_pytorch as binding
print(binding.__doc__, job.require().backend.details()["ccl_implementation"], dist.new_group() is not None)
cpudist.shutdown()
del __import__("sys").modules["oneccl_bindings_for_pytorch"]
try:
    import oneccl_bindings_for_pytorch
except SystemExit as error:
    print(error)
"""


@pytest.mark.job
def test_an_installed_binding_of_intels_does_not_replace_ccl(tmp_path: Path) -> None:
    """A package with its names, which is on no package index; imported, it would register another ``ccl``."""
    package = tmp_path / "oneccl_bindings_for_pytorch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the installed package was imported')")
    (tmp_path / "oneccl_bind_pt-0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: oneccl_bind_pt\nVersion: 2.8.0+cpu\n"
    (tmp_path / "oneccl_bind_pt-0.dist-info" / "METADATA").write_text(metadata)
    result = jobs.completed([sys.executable, "-c", _BINDING], 60, env={"PYTHONPATH": str(tmp_path)})
    assert "Stands for Intel's package: the backend ccl is cpudist's. cpudist True" in result.stdout, result.output
    assert result.stdout.endswith("the installed package was imported\n"), "after the job, it is the user's again"
    line = "cpudist: the backend ccl is cpudist's own; oneccl_bind_pt 2.8.0+cpu is installed and not used\n"
    assert result.stderr.count(line) == 1, result.output


def test_ccl_registers_itself_again_after_another_has(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = torch.distributed.Backend._plugins
    monkeypatch.setitem(plugins, "CCL", torch.distributed.Backend._BackendPlugin(lambda *_: None, True))
    register.register()
    assert plugins["CCL"].creator_fn is register._create


def _program(file: Path, *lines: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(["#!/bin/bash", *lines]))
    file.chmod(0o755)
    return file


@pytest.mark.job
def test_cxx_may_have_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = _program(tmp_path / "ccache", '"$@"')
    gcc = _program(tmp_path / "g++", "echo 'g++ (Debian 12.2.0-14) 12.2.0'")
    clang = _program(tmp_path / "c++", "echo 'Debian clang version 14.0.6'")
    spaced = _program(tmp_path / "with space" / "g++", "echo 'g++ (GCC) 13.1.0'")
    for cxx, label, words in (
        (gcc, "g++", 1),
        (f"{gcc} -m64", "g++-DIGEST", 2),
        (f"{cache} {gcc} -isystem /usr", "g++-DIGEST", 4),
        (clang, "c++", 1),
        (spaced, "g++", 1),
        (f"'{spaced}'", "g++", 1),
    ):
        monkeypatch.setenv("CXX", str(cxx))
        found = compiler.find_compiler()
        assert (re.sub("[0-9a-f]{8}", "DIGEST", found.label), len(found.command)) == (label, words)
        assert found.openmp == (() if cxx == clang else ("-fopenmp",))
    for cxx in ("none-such", f"{cache} none-such", f"none-such {gcc}", "-m64", " "):
        monkeypatch.setenv("CXX", cxx)
        assert compiler.find_compiler() is None
    monkeypatch.setenv("CXX", f"'{gcc}")
    with pytest.raises(UserError, match="correct its quotes"):
        compiler.find_compiler()


def test_a_library_that_others_could_write_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_another_compilers_library_serves_only_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ("clang++", "g++", "g++-12345678"):
        library = tmp_path / "key" / label / "it.so"
        library.parent.mkdir(parents=True)
        library.touch()
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.find(LIBRARY, tmp_path).parent.name == "g++"
    (tmp_path / "key/g++/it.so").unlink()
    assert compiler.find(LIBRARY, tmp_path) is None, "g++ is here, and compiles its own"
    monkeypatch.setenv("CXX", "none-such")
    assert compiler.ensure(LIBRARY, tmp_path) == library
    with pytest.raises(UserError, match=r"no C\+\+ compiler none-such; install g\+\+"):
        compiler.ensure(LIBRARY, tmp_path / "empty")


def test_the_lock_follows_no_link_and_needs_a_folder(tmp_path: Path) -> None:
    folder, other = tmp_path / "cache" / "key" / "compiler", tmp_path / "precious"
    folder.mkdir(parents=True)
    other.write_text("kept")
    (folder / "lock").symlink_to(other)
    for place in (folder, other / "compiler"):
        with pytest.raises(UserError, match=r"cannot write it to .*; set CPUDIST_CACHE"), compiler._lock(place, "it"):
            pass
    assert other.read_text() == "kept"


def test_the_wait_for_the_lock_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_COMPILE_SECONDS", 0.01)
    lock = partial(compiler._lock, tmp_path / "cache" / "key" / "compiler", "it")
    with lock(), pytest.raises(UserError, match="still compiles it"), lock():
        pass


@pytest.mark.job
def test_a_failed_compile_leaves_a_log_and_a_killed_ones_files_go(tmp_path: Path) -> None:
    found = compiler.find_compiler()
    assert found is not None
    folder = tmp_path / "key" / found.label
    failing = replace(LIBRARY, command=lambda *_: ["sh", "-c", "echo 'x.cpp:1: error: no such luck' >&2; exit 1"])
    with pytest.raises(UserError, match="no such luck"):
        compiler.ensure(failing, tmp_path)
    assert {path.name for path in folder.iterdir()} == {"lock", "compile.log"}
    left = folder / f"{compiler._SCRATCH}x" / "file"
    left.parent.mkdir()
    left.touch()
    assert compiler.ensure(LIBRARY, tmp_path).exists()
    assert not left.parent.exists()


@pytest.mark.job
def test_two_at_once_compile_once(tmp_path: Path) -> None:
    # It compiles an empty file instead of the source, which takes a minute. Other tests load the real module.
    (tmp_path / "empty.cpp").touch()
    quick = _program(tmp_path / "quick-g++", f'exec g++ "${{@/#*unity.cpp/{tmp_path}/empty.cpp}}"')
    command = [sys.executable, "-m", "cpudist", "build", "--output", str(tmp_path / "cache")]
    env = os.environ | {"CXX": str(quick)}
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(errors.count("compiling the ccl backend") for _, errors in outputs) == 1, outputs
    assert len(list((tmp_path / "cache").glob("*/*/cpudist_ccl.so"))) == 1


def test_the_module_is_compiled_without_oneccl_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise toolchain.PackageNotFoundError(name)

    monkeypatch.setattr(toolchain, "distribution", missing)
    toolchain.find_oneccl.cache_clear()
    assert toolchain.find_oneccl() is None
    toolchain.find_oneccl.cache_clear()
    module = compilation.module(None)
    command = module.command(compiler.Compiler(("g++",), "g++"), Path("x.so"))
    assert module.file == MODULE_WITHOUT_ONECCL
    assert not [word for word in command if "ccl" in word.lower() and "csrc" not in word]


def test_in_the_sources_no_torch_is_below_transport_hpp_and_no_oneccl_above_it() -> None:
    parts = (
        "compressed_sum|coroutine|hierarchy|parallel|pieces|rendezvous|signature|traffic|transport|transport_selection"
    )
    below = re.compile(rf"({parts})\.[ch]pp|(kernels|mpi|oneccl|shared_memory)/.*")
    of_torch = re.compile(r"#include <(torch|ATen|c10|pybind11)|\b(at|c10|c10d|torch|pybind11|py)::")
    of_oneccl = re.compile(r"#include <oneapi|(?<![\w:])ccl::")
    files = {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.[ch]pp")}
    lower = {name: text for name, text in files.items() if below.fullmatch(name)}
    assert len(files) - 10 > len(lower) > 10
    assert [name for name, text in lower.items() if of_torch.search(text)] == []
    assert {name.split("/")[0] for name, text in files.items() if of_oneccl.search(text)} == {"oneccl"}
