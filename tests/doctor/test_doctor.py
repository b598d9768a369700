"""`cpudist doctor`: each check on files that show the trouble, and the whole on this machine."""

import functools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import jobs
import pytest
from launcher_variables import PALS

from cpudist.cli import doctor as command
from cpudist.doctor import libraries, resources, usable_backends, versions
from cpudist.findings import Finding
from cpudist.topology.kernel_files import Files


def tree(root: Path, **files: str) -> Files:
    """Files by their path, with two underscores for each slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Files(root)


def levels(findings: Iterable[Finding]) -> dict[str, str]:
    return {finding.about: finding.level for finding in findings}


def test_host_names_and_shared_memory() -> None:
    names = {"no-such-host.invalid": "error", "localhost": "warning", "192.0.2.1": "ok"}
    assert {name: usable_backends.resolve(name).level for name in names} == names
    free = {None: "error", 1 << 20: "error", 64 << 20: "warning", 8 << 30: "ok"}
    assert {bytes: resources.shared_memory(bytes).level for bytes in free} == free


def test_a_quota(tmp_path: Path) -> None:
    files = tree(
        tmp_path,
        proc__self__mountinfo="30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        proc__self__cgroup="0::/",
        sys__devices__system__cpu__online="0-7",
    )
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("150000 100000\n")
    found = list(resources.check(files, {}))
    assert levels(found)["CPU quota"] == "warning"
    assert "together get 1 computing thread" in found[0].message


def test_processors(tmp_path: Path) -> None:
    for flags, level, part in (
        ("flags\t\t: fpu avx2 avx512f", "warning", ""),
        ("flags\t\t: fpu amx_bf16 avx512_bf16 avx512_fp16", "ok", "AMX and AVX512_BF16"),
        ("Features\t: fp asimd bf16 i8mm", "ok", ""),
    ):
        (found,) = (one for one in resources.check(tree(tmp_path, proc__cpuinfo=flags), {}) if one.about == "CPU")
        assert (found.level, part in found.message) == (level, True)


def test_two_openmp_runtimes_in_one_process() -> None:
    maps = "\n".join(
        f"7f00-7f01 r-xp 00000000 00:01 1 {path}"
        for path in ("/a/torch/lib/libgomp.so.1", "/b/lib/libiomp5.so", "/usr/lib/libtcmalloc_minimal.so.4.5.10")
    )
    found = list(libraries.libraries(maps, {}))
    assert levels(found) == {"OpenMP": "warning", "allocator": "ok"}
    assert "/b/lib/libiomp5.so" in found[0].message
    assert "/b/lib/libiomp5.so, and Intel's serves all" in found[0].remedy
    assert "tcmalloc" in found[1].message
    for variables, text in (({"LD_PRELOAD": "/b/lib/libiomp5.so"}, maps), ({}, maps.splitlines()[0])):
        assert levels(libraries.libraries(text, variables))["OpenMP"] == "ok"
    gnu_twice = maps.replace("/b/lib/libiomp5.so", "/c/sklearn.libs/libgomp-e985bcbb.so.1.0.0")
    assert levels(libraries.libraries(gnu_twice, {}))["OpenMP"] == "ok"
    (finding,) = libraries.libraries("7f00 r-xp 0 00:01 1 /lib/libompl.so", {"MALLOC_ARENA_MAX": "2"})
    assert (finding.about, "MALLOC_ARENA_MAX is set" in finding.message) == ("allocator", True)


@pytest.mark.job
def test_a_compiled_backend_or_torch_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor then reports gloo, as a job would take it."""
    broken = tmp_path / "cpudist_ccl.so"
    broken.write_bytes(b"no library")
    for module in (usable_backends, libraries):
        monkeypatch.setattr(module, "find_built", lambda: broken)
    monkeypatch.setattr(libraries, "load", functools.cache(libraries.load.__wrapped__))
    monkeypatch.setattr(usable_backends, "load", libraries.load)
    (_, finding, *_) = usable_backends.check(Files(tmp_path), os.environ)
    assert finding.level == "warning"
    assert "auto is gloo" in finding.message
    assert str(tmp_path) in finding.remedy

    libraries.load.cache_clear()
    (tmp_path / "torch.py").write_text("raise ImportError('libfoo.so.1: cannot open shared object file')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (finding,) = libraries.check(Files(tmp_path), os.environ)
    assert (finding.level, "libfoo.so.1" in finding.message) == ("error", True)


@pytest.mark.parametrize(
    ("name", "version", "level"),
    [("accelerate", "0.1.0", "error"), ("torch", "2.7.1", "error"), ("torch", "2.99.0.dev20261126", "warning")],
)
def test_other_versions(name: str, version: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real installation, in a folder that comes first. Jobs run on a torch that is newer."""
    package = tmp_path / f"{name}-{version}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = (one for one in versions.check(Files(), {}) if one.about == name)
    assert finding.level == level
    assert version in finding.message
    assert finding.remedy.startswith(f"pip install '{name}")


@pytest.mark.job
def test_another_mpirun_first_on_path(tmp_path: Path) -> None:
    if not (jobs.BIN / "mpirun").exists():
        pytest.skip("this environment has no mpirun")
    other = tmp_path / "mpirun"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    found = levels(list(usable_backends.check(Files(tmp_path), PALS | {"PATH": str(tmp_path)})))
    assert (found["mpirun"], found["launcher"]) == ("warning", "ok")
    assert levels(usable_backends.check(Files(tmp_path), {"PATH": str(jobs.BIN)}))["mpirun"] == "ok"


@pytest.mark.job
def test_the_whole_on_this_machine() -> None:
    done = jobs.run([sys.executable, "-m", "cpudist", "doctor", "--json"], timeout=120)
    answer = json.loads(done.stdout)
    ranks = [("error", "warning", "ok").index(finding["level"]) for finding in answer["findings"]]
    assert ranks == sorted(ranks), "the most important come first"
    assert answer["ok"] == (0 not in ranks)
    assert done.returncode == (0 if answer["ok"] else 1)
    for finding in answer["findings"]:
        assert finding["message"].count("\n") == 0
        assert finding["remedy"] or finding["level"] == "ok", finding
    everywhere = {"versions", "host name", "backend", "mpirun", "OpenMP", "allocator", "CPU", "CPUs", "CPU quota"}
    assert everywhere | {"/dev/shm"} <= {finding["about"] for finding in answer["findings"]}


def test_the_worst_comes_last_and_then_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("error", "a", "fails", "mend it"), Finding("warning", "b", "lacks"), Finding("ok", "c", "fine")]
    command.show(findings)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok", "warning", "error", "remedy:", "1"]
    assert lines[-1] == "1 error, 1 warning: a job would fail"
