"""The registry of backends, and what the ccl backend decides before it talks to anybody."""

import importlib
import sys
from pathlib import Path

import jobs
import pytest
import torch

from cpudist import backends
from cpudist import compiler as compiling
from cpudist.backends.ccl import ccl_group, compilation, extension, register, toolchain
from cpudist.backends.ccl.ccl_backend import CclBackend
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
    with pytest.raises(UserError, match="no backend 'nccl'; choose auto or one of accelerator, ccl, gloo"):
        backends.get("nccl")


_GUEST = """
from cpudist.backends import Devices, Option
from cpudist.backends.gloo import GlooBackend

class Chips(Devices):
    companions = ("guest-runtime",)

    def findings(self, environment):
        yield "warning", "the guest is hungry", "feed it"

    def found(self):
        return "3 chips"

class Guest(GlooBackend):
    name = "guest"
    options = (
        Option("depth", "how deep to go", type=int, default=2, metavar="N"),
        Option("mode", "how to go", choices=("fast", "safe")),
        Option("dry_run", "do not go", type=bool, default=False),
    )
    devices = Chips()

    def start(self, world, store, timeout):
        import torch.distributed as dist
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        print("guest:", sorted(self.configured.items()))
"""


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package that brings a backend by the entry point, and a broken one, in a folder on PYTHONPATH."""
    (tmp_path / "guest.py").write_text(_GUEST)
    (tmp_path / "script.py").write_text("import torch.distributed as dist; print('ran on', dist.get_backend())")
    info = tmp_path / "guest-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[cpudist.backends]\nguest = guest:Guest\nbroken = no_such_module:Broken\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.job
def test_a_backend_of_another_package_brings_its_options_and_findings(guest: Path) -> None:
    shown = jobs.completed(jobs.train("--help"), 60)
    for words in ("with --backend guest", "--depth N", "--mode {fast,safe}", "--dry-run", "ccl, gloo, guest, xla"):
        assert words in shown.stdout, shown.output
    script = str(guest / "script.py")
    ran = jobs.completed(jobs.train("--backend", "guest", "--depth", "3", "--dry-run", script), 60)
    assert "guest: [('depth', 3), ('dry_run', True), ('mode', None)]\n" in ran.stdout, ran.output
    assert "ran on gloo\n" in ran.stdout, ran.output
    auto = jobs.run(jobs.train("--backend", "auto", script), 60)
    assert "takes ccl, on the CPU; 3 chips of this machine idle (--backend guest)" in auto.stderr, auto.output
    for words, says in (
        (["--backend", "guest", "--mode", "slow", script], "invalid choice: 'slow'"),
        (["--backend", "broken", script], "backend broken cannot be imported: No module named 'no_such_module'"),
    ):
        refused = jobs.run(jobs.train(*words), 60)
        assert refused.returncode == 2, refused.output
        assert refused.stderr.count("\n") == 1, refused.output
        assert says in refused.stderr, refused.output
    told = jobs.run([sys.executable, "-m", "cpudist", "doctor", "--json"], 60).stdout
    assert "the guest is hungry" in told


@pytest.mark.job
def test_the_declarations_of_xla_are_read_without_torch() -> None:
    program = (
        "import sys; from cpudist import backends; from cpudist.cli import train; train.main(['--help']);"
        "print(sorted(backends.plugins()), [name for name in ('torch', 'torch_xla') if name in sys.modules])"
    )
    done = jobs.run([sys.executable, "-c", program], 60)
    assert done.stdout.splitlines()[-1] == "['xla'] []", done.output
    assert "--mesh AXES" in done.stdout, done.output


@pytest.mark.job
def test_torch_knows_ccl_without_an_import_of_cpudist() -> None:
    """By the entry point that torch calls at its import; the one that torch 2.14 reads: ccl/test_ccl.py."""
    program = "from torch.distributed import distributed_c10d as c10d; print(c10d.is_backend_available('ccl'))"
    assert jobs.run([sys.executable, "-c", program], 60).stdout == "True\n"


def test_ranks_agree_on_the_transport_that_the_user_has_set() -> None:
    chosen = {"": (True, False), "oneccl": (False, False), "mpi": (True, True), "mpi-alone": (False, True)}
    assert {value: ccl_group.chosen_transports({value}) for value in chosen} == chosen
    for values, why in (({"pigeon"}, "is not known"), ({"", "oneccl"}, "some ranks only")):
        with pytest.raises(UserError, match=why):
            ccl_group.chosen_transports(values)


def test_the_module_is_compiled_without_oneccl_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise toolchain.PackageNotFoundError(name)

    monkeypatch.setattr(toolchain, "distribution", missing)
    toolchain.find_oneccl.cache_clear()
    assert toolchain.find_oneccl() is None
    toolchain.find_oneccl.cache_clear()
    module = compilation.module(None)
    compiler = compiling.Compiler(("g++",), "g++")
    assert module.file == compilation.MODULE_WITHOUT_ONECCL
    assert not [word for word in module.command(compiler, Path("x.so")) if "ccl" in word.lower() and "csrc" not in word]


@pytest.mark.parametrize(
    ("files", "oneccl_libraries", "found"),
    [
        ((compilation.MODULE, compilation.MODULE_WITHOUT_ONECCL), True, compilation.MODULE),
        ((compilation.MODULE, compilation.MODULE_WITHOUT_ONECCL), False, compilation.MODULE_WITHOUT_ONECCL),
        ((compilation.MODULE,), False, None),
    ],
)
def test_a_wheels_module_with_oneccl_serves_where_its_libraries_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: tuple[str, ...], oneccl_libraries: bool, found: str | None
) -> None:
    monkeypatch.setattr(compilation, "find_oneccl", lambda: None)
    monkeypatch.setattr(compilation, "find_libraries", lambda: tmp_path / "lib" if oneccl_libraries else None)
    prebuilt = tmp_path / "lib/python3.11/site-packages/cpudist/backends/ccl/prebuilt"
    monkeypatch.setattr(compilation, "PREBUILT", prebuilt)
    folder = prebuilt / compilation.prebuilt_for()
    folder.mkdir(parents=True)
    for file in files:
        (folder / file).touch()
    assert compilation.prebuilt() == (folder / found if found else None)
    if found:
        assert compilation.find_built() == compilation.ensure_built() == folder / found


def test_without_a_compiler_any_binary_for_this_torch_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "none-such")
    with pytest.raises(UserError, match="no C\\+\\+ compiler none-such; install the package g\\+\\+"):
        compilation.ensure_built(tmp_path)
    binary = tmp_path / compilation._key(toolchain.find_oneccl()) / "clang++-19" / "cpudist_ccl.so"
    binary.parent.mkdir(parents=True)
    binary.touch()
    assert compilation.ensure_built(tmp_path) == binary


@pytest.mark.job
def test_a_cache_that_cannot_be_written_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = tmp_path / "cache"
    taken.write_text("a file")
    with pytest.raises(UserError, match="set CPUDIST_CACHE"):
        compilation.ensure_built(taken)


@pytest.mark.job
def test_a_failing_compiler_leaves_a_log_and_no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'csrc/x.cpp:1: error: no such luck' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(compiling, "find_compiler", lambda: compiling.Compiler((str(compiler),), "g++-0"))
    with pytest.raises(UserError, match="no such luck"):
        compilation.ensure_built(tmp_path / "cache")
    assert not list(tmp_path.glob("cache/**/*.so"))
    assert list(tmp_path.glob("cache/**/compile.log"))


def test_mpi_carries_messages_only_in_an_mpi_world_that_is_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extension.transport() == "ofi"
    for name, value in INTEL_MPI.items():
        monkeypatch.setenv(name, value)
    assert extension.transport() == "mpi"
    monkeypatch.setenv("WORLD_SIZE", "4")  # processes that a rank has spawned
    assert extension.transport() == "ofi"
    monkeypatch.setenv("CCL_ATL_TRANSPORT", "mpi")
    assert extension.transport() == "mpi", "what the user has set stays"


def test_only_import_statements_of_the_users_code_find_intels_binding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = (
        "import importlib\n"
        "import importlib.util\n"
        "found = importlib.util.find_spec('torch_ccl')\n"
        "try:\n"
        "    importlib.import_module('torch_ccl')\n"
        "except ImportError:\n"
        "    pass\n"
        "else:\n"
        "    found = True\n"
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
