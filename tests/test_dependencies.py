"""What `pip install cpudist` and its extras ccl and build bring, and jobs in an environment that has nothing else."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import jobs
import pytest
from packaging.requirements import Requirement

_SITE = Path(sysconfig.get_path("purelib"))
_MOST_BYTES = {"ccl": 0.33e9, "build": 0.25e9}  # of what an extra brings, unpacked


def _needed(name: str, extras: set[str] = frozenset()) -> dict[str, Distribution]:  # type: ignore[assignment]
    """Return the packages that pip installs for `name[extras]`, by their names."""
    found = {name: distribution(name)}
    for text in found[name].requires or []:
        requirement = Requirement(text)
        markers = requirement.marker
        if markers is None or any(markers.evaluate({"extra": extra}) for extra in extras or {""}):
            found |= _needed(requirement.name, requirement.extras)
    return found


@pytest.mark.parametrize(
    ("extra", "packages"), [("ccl", {"impi-rt", "tcmlib"}), ("build", {"oneccl-cpu-devel", "oneccl-cpu", "impi-rt"})]
)
def test_extras_bring_nothing_for_gpus(extra: str, packages: set[str]) -> None:
    """oneCCL's package with code for GPUs needs 1.2 GB, most of it SYCL's; that for CPUs is for compiling only."""
    added = _needed("cpudist", {extra}).keys() - _needed("cpudist").keys()
    assert added == packages
    own = added - {"impi-rt"} if extra == "build" else added
    sizes = {name: sum(file.size or 0 for file in distribution(name).files or []) for name in own}
    assert sum(sizes.values()) < _MOST_BYTES[extra], sizes


@pytest.mark.job
@pytest.mark.long
def test_pip_still_takes_intels_older_wheels() -> None:
    """Intel MPI 2021.19 and oneCCL 2022.2 want a libfabric that PyPI lacks. If pip takes others: scripts/canary.sh."""
    wanted = [text for text in distribution("cpudist").requires or [] if re.match("impi-rt|oneccl", text)]
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    done = jobs.run([*words, *(text.partition(";")[0] for text in wanted)], timeout=300)
    if "Could not find a version that satisfies the requirement impi-rt" in done.stderr:
        pytest.skip("pip reaches no index")
    assert done.returncode == 0, done.output
    taken = {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}
    assert taken == {"impi-rt": "2021.18.1", "oneccl-cpu": "2022.1.2", "oneccl-cpu-devel": "2022.1.2"}


def test_the_base_does_not_need_hugging_face() -> None:
    assert {"transformers", "accelerate", "datasets", "cloudpickle"}.isdisjoint(_needed("cpudist"))


def _make_environment(folder: Path) -> None:
    """Make an environment of links to this one's packages: those of cpudist[ccl,build] and no other."""
    venv.create(folder, with_pip=False)
    for package in _needed("cpudist", {"ccl", "build"}).values():
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
    _make_environment(folder)
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
