"""The registry of backends, and what the ccl backend decides before it talks to anybody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
import torch

from cpudist import backends
from cpudist.backends.ccl import build, extension, intel, toolchain
from cpudist.backends.ccl.backend import CclBackend
from cpudist.backends.gloo import GlooBackend
from cpudist.errors import UserError

INTEL_MPI = {"I_MPI_HYDRA_UUID": "x", "PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*INTEL_MPI, "RANK", "WORLD_SIZE", "LOCAL_RANK", "CCL_ATL_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)


def test_backends_are_found_by_name() -> None:
    assert backends.get("ccl") is CclBackend
    assert backends.get("gloo") is GlooBackend
    with pytest.raises(UserError, match="no backend 'nccl'; choose auto or one of ccl, gloo"):
        backends.get("nccl")


def test_a_registered_backend_is_a_backend_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_known", dict(backends._known))
    backends.register("other", "cpudist.backends.gloo:GlooBackend")
    assert backends.get("other") is GlooBackend
    assert "other" in backends.names()


# With 0 torch does not ask the packages of its group torch.backends, which is how releases before 2.14 learn of ccl.
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@pytest.mark.parametrize("autoload", ["1", "0"])
def test_torch_knows_ccl_without_an_import_of_cpudist(autoload: str) -> None:
    """By either entry point alone: the one that torch calls at its import, the one it looks ccl up in (2.14)."""
    program = "from torch.distributed import distributed_c10d as c10d; print(c10d.is_backend_available('ccl'))"
    environment = {**os.environ, AUTOLOAD: autoload}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    looks_up = hasattr(torch.distributed.Backend, "_ensure_backend_registered")
    assert done.stdout.strip() == str(autoload == "1" or looks_up)


def test_import_of_cpudist_does_not_import_torch() -> None:
    program = "import sys, cpudist; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_no_oneccl_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise toolchain.PackageNotFoundError(name)

    toolchain.find_oneccl.cache_clear()
    monkeypatch.setattr(toolchain, "distribution", missing)
    with pytest.raises(UserError, match=r"pip install 'cpudist\[ccl\]'"):
        toolchain.find_oneccl()


def test_no_compiler_and_nothing_compiled_names_gxx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    with pytest.raises(UserError, match="install the package g\\+\\+"):
        build.ensure_built(tmp_path)


def test_without_a_compiler_any_binary_for_this_torch_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    binary = tmp_path / build._key(toolchain.find_oneccl()) / "clang++-19" / "cpudist_ccl.so"
    binary.parent.mkdir(parents=True)
    binary.touch()
    assert build.ensure_built(tmp_path) == binary


def test_a_cache_that_cannot_be_written_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = tmp_path / "cache"
    taken.write_text("a file")
    with pytest.raises(UserError, match="set CPUDIST_CACHE"):
        build.ensure_built(taken)


def test_a_failing_compiler_leaves_a_log_and_no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'csrc/x.cpp:1: error: no such luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "find_compiler", lambda: toolchain.Compiler(str(compiler), "g++-0"))
    with pytest.raises(UserError, match="no such luck"):
        build.ensure_built(tmp_path / "cache")
    assert not list(tmp_path.glob("cache/**/*.so"))
    assert list(tmp_path.glob("cache/**/compile.log"))


def test_mpi_carries_messages_only_in_an_mpi_world_that_is_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extension.choose_transport() == "ofi"
    for name, value in INTEL_MPI.items():
        monkeypatch.setenv(name, value)
    assert extension.choose_transport() == "mpi"
    monkeypatch.setenv("WORLD_SIZE", "4")  # processes that a rank has spawned
    assert extension.choose_transport() == "ofi"
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "mpi")
    assert extension.choose_transport() == "mpi", "what the user has set stays"


def test_a_group_that_meets_in_a_file_needs_none_of_torchs_variables(tmp_path: Path) -> None:
    """Nor is it harmed by one of them that happens to be set."""
    script = (
        f"import torch, torch.distributed as dist; dist.init_process_group('ccl', init_method='file://{tmp_path}/meet',"
        " rank=0, world_size=1); dist.all_reduce(torch.ones(3)); dist.destroy_process_group(); print('met')"
    )
    result = jobs.run([sys.executable, "-c", script], 60, env={"WORLD_SIZE": "1"})
    assert result.returncode == 0, result.output
    assert "met" in result.stdout, result.output


@pytest.fixture
def stand_in_for_intels_binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with the name and version of Intel's binding, which is on no package index."""
    (tmp_path / "oneccl_bindings_for_pytorch").mkdir()
    (tmp_path / "oneccl_bindings_for_pytorch" / "__init__.py").touch()
    info = tmp_path / "oneccl_bind_pt-0.dist-info"
    info.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    return info / "METADATA"


def test_intels_binding_is_used_only_where_it_was_made_for_this_torch(stand_in_for_intels_binding: Path) -> None:
    fitting = ".".join(torch.__version__.split(".")[:2]) + ".0+cpu"
    stand_in_for_intels_binding.write_text(f"Metadata-Version: 2.1\nName: oneccl_bind_pt\nVersion: {fitting}\n")
    assert intel.binding(torch.__version__) == fitting
    assert fitting in CclBackend().details()["ccl_implementation"]
    stand_in_for_intels_binding.write_text("Metadata-Version: 2.1\nName: oneccl_bind_pt\nVersion: 1.13.0\n")
    assert intel.binding(torch.__version__) is None


def test_what_the_user_has_set_is_not_overridden() -> None:
    program = (
        "import os; os.environ['CCL_WORKER_OFFLOAD'] = '1'\n"
        "from cpudist.backends.ccl import extension; extension.load(); print(os.environ['CCL_WORKER_OFFLOAD'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["1"], done.stdout + done.stderr
