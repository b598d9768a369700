"""What `pip install cpudist` and its extras bring, and jobs in an environment that has nothing else."""

import os
import re
import sys
import sysconfig
import tomllib
import venv
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


def _needed(requirements: list[str]) -> dict[str, Distribution]:
    """Return the packages that pip installs for these, by their names."""
    found = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            package = distribution(requirement.name)
            found |= {requirement.name: package, **_needed(package.requires or [])}
    return found


def test_compiling_needs_nothing_for_gpus() -> None:
    """oneCCL's package with code for GPUs needs 1.2 GB, most of it SYCL's."""
    needed = _needed(_BASE + _EXTRAS["build"])
    assert needed.keys() - _needed(_BASE).keys() == {"oneccl-cpu-devel", "oneccl-cpu", "impi-rt", "tcmlib"}


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
def test_the_first_command_of_the_readme_learns_without_hugging_face(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    _make_environment(folder, _EXTRAS["build"])
    path = {"PATH": f"{folder}/bin:{jobs.environment()['PATH']}"}
    absent = ("transformers", "accelerate", "datasets", "cloudpickle")
    ask = f"import cpudist, importlib.util; assert not any(map(importlib.util.find_spec, {absent}))\n"
    ask += "try: cpudist.notebook_launcher\nexcept cpudist.UserError as error: print(error)"
    said = jobs.completed([str(folder / "bin" / "python"), "-c", ask], timeout=120, env=path).stdout
    assert "install it with: pip install 'cpudist[notebook]'" in said
    program = str(Path(__file__).parents[1] / "examples" / "one_program.py")
    train = [str(folder / "bin" / "mpirun"), "-n", "2", "cpudist-train", "--backend", "ccl", program]
    learnt = jobs.completed([*train, str(tmp_path / "out")], timeout=300, env=path).stdout
    losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", learnt)]
    assert (len(losses), losses[-1] < losses[0], any((tmp_path / "out").iterdir())) == (20, True, True), learnt
    result = jobs.run([str(folder / "bin" / "cpudist"), "bench", "hosts"], timeout=120, env=path)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert "needs transformers; install it with: pip install 'cpudist[hf]'" in result.stderr
