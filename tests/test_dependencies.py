"""What `pip install cpudist` and its extras bring, and jobs in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import jobs
import pytest
from packaging.requirements import Requirement

_SITE = Path(sysconfig.get_path("purelib"))
# The installed metadata of a checkout may be older than its file.
_PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_BASE: list[str] = _PROJECT["dependencies"]
_EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]
_MOST_BYTES = {"ccl": 0.35e9, "build": 0.65e9}  # of all that an extra brings beside torch, unpacked


def _needed(requirements: list[str]) -> dict[str, Distribution]:
    """Return the packages that pip installs for these, by their names."""
    found = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            package = distribution(requirement.name)
            found |= {requirement.name: package, **_needed(package.requires or [])}
    return found


def _bytes(packages: Iterable[Distribution]) -> int:
    return sum(file.size or 0 for package in packages for file in package.files or [])


def test_compiling_needs_nothing_for_gpus() -> None:
    """oneCCL's package with code for GPUs needs 1.2 GB, most of it SYCL's."""
    needed = _needed(_BASE + _EXTRAS["build"])
    assert needed.keys() - _needed(_BASE).keys() == {"oneccl-cpu-devel", "oneccl-cpu", "impi-rt", "tcmlib"}
    beside_torch = needed.keys() - _needed(["torch"]).keys()
    assert _bytes(needed[name] for name in beside_torch) < _MOST_BYTES["build"]


@pytest.mark.job
@pytest.mark.long
def test_running_needs_little(tmp_path: Path) -> None:
    """MPICH is not installed here, where Intel MPI has files of the same names."""
    wanted = [text for text in _BASE + _EXTRAS["ccl"] if not text.startswith("torch")]
    _ask_pip(["--target", str(tmp_path), *wanted])
    packages = list(distributions(path=[str(tmp_path)]))
    assert {package.name for package in packages} == {Requirement(text).name for text in wanted}
    assert _bytes(packages) < _MOST_BYTES["ccl"]


@pytest.mark.job
@pytest.mark.long
def test_pip_still_takes_intels_older_wheels() -> None:
    """Intel MPI 2021.19 and oneCCL 2022.2 want a libfabric that PyPI lacks. If pip takes others: scripts/canary.sh."""
    wanted = [text for text in _EXTRAS["impi"] + _EXTRAS["build"] if re.match("impi-rt|oneccl", text)]
    said = _ask_pip(["--dry-run", "--ignore-installed", "--report", "-", *wanted])
    taken = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(said)["install"]}
    assert taken == {"impi-rt": "2021.18.1", "oneccl-cpu": "2022.1.2", "oneccl-cpu-devel": "2022.1.2"}


def _ask_pip(words: list[str]) -> str:
    """Return what `pip install` prints; skip the test where it reaches no index."""
    done = jobs.run([sys.executable, "-m", "pip", "install", "--quiet", *words], timeout=300)
    if "Could not find a version that satisfies the requirement" in done.stderr:
        pytest.skip("pip reaches no index")
    assert done.returncode == 0, done.output
    return done.stdout


def test_the_base_does_not_need_hugging_face() -> None:
    assert {"transformers", "accelerate", "datasets", "cloudpickle"}.isdisjoint(_needed(_BASE))


def _make_environment(folder: Path, extra: list[str]) -> None:
    """Make an environment of links to this one's packages: those of cpudist with an extra and no other."""
    venv.create(folder, with_pip=False)
    installed = next(iter(distributions(name="cpudist", path=[str(_SITE)])))  # not the checkout's egg-info
    for package in (installed, *_needed(_BASE + extra).values()):
        for file in package.files or []:
            source = Path(os.path.normpath(str(package.locate_file(file))))
            if source.is_relative_to(_SITE):  # a folder of the package as a whole
                source = _SITE / source.relative_to(_SITE).parts[0]
            target = folder / source.relative_to(sys.prefix)
            if source.exists() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source)
    for script in ("cpudist", "cpudist-train"):  # their first line names the Python that has all packages
        text = (Path(sys.prefix) / "bin" / script).read_text(encoding="utf-8")
        path = folder / "bin" / script
        path.unlink(missing_ok=True)
        path.write_text(text.replace(sys.prefix, str(folder)), encoding="utf-8")
        path.chmod(0o755)


@pytest.mark.job
def test_a_plain_script_runs_without_hugging_face(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    _make_environment(folder, _EXTRAS["build"])
    path = {"PATH": f"{folder}/bin:{jobs.environment()['PATH']}"}
    script = Path(__file__).parent / "checks" / "plain_ddp.py"
    mpirun = [str(folder / "bin" / "mpirun"), "-n", "2"]
    result = jobs.run([*mpirun, "cpudist-train", "--backend", "ccl", str(script)], timeout=120, env=path)
    assert result.returncode == 0, result.output
    assert "trained on ccl" in result.stdout
    assert "install it with: pip install 'cpudist[notebook]'" in result.stdout

    result = jobs.run([str(folder / "bin" / "cpudist"), "bench", "hosts"], timeout=120, env=path)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert "needs transformers; install it with: pip install 'cpudist[hf]'" in result.stderr


@pytest.mark.job
@pytest.mark.long
def test_ranks_train_over_mpi_without_oneccl(tmp_path: Path) -> None:
    """The extra mpi brings MPICH; here it is Intel MPI, which has the same ABI."""
    folder = tmp_path / "env"
    _make_environment(folder, ["impi-rt"])
    path = {"PATH": f"{folder}/bin:{jobs.environment()['PATH']}", "CPUDIST_TRANSPORT": "mpi-alone"}
    record, script = tmp_path / "record.json", Path(__file__).parent / "checks" / "plain_ddp.py"
    train = ["cpudist-train", "--backend", "ccl", "--record", str(record), str(script)]
    result = jobs.run([str(folder / "bin" / "mpirun"), "-n", "2", *train], timeout=240, env=path)
    assert result.returncode == 0, result.output
    found = json.loads(record.read_text())
    assert found["transport"] == "mpi"
    assert "not installed" in found["details"]["oneccl"]
