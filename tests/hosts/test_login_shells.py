"""`cpudist launch` to a host whose user has another login shell, which greets, and another home; names with spaces."""

import os
import shutil
from pathlib import Path

import pytest
from bed import Bed
from jobs import launch
from mpis import require

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).with_name("checks") / "greets.py"
# What each shell reads when sshd starts it for one command.
FIRST_FILES = {"bash": ".bashrc", "zsh": ".zshenv", "fish": ".config/fish/config.fish", "csh": ".cshrc"}
WAYS = [("bash", "intel"), ("zsh", "intel"), ("csh", "mpich"), ("fish", "openmpi")]


@pytest.mark.parametrize(("shell", "mpi"), WAYS)
def test_another_login_shell_and_home(own_bed: Bed, tmp_path: Path, shell: str, mpi: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    require(mpi)
    home, here = tmp_path / "its home", tmp_path / "my files"
    here.mkdir()
    (home / FIRST_FILES[shell]).parent.mkdir(parents=True)
    (home / FIRST_FILES[shell]).write_text("echo Welcome, and read our rules\n")
    users = tmp_path / "passwd"
    users.write_text(f"root:x:0:0:root:{home}:{program}\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
    own_bed.run("h1", ["mount", "--bind", str(users), "/etc/passwd"], timeout=60)
    hosts = ["--hostfile", own_bed.hostfile(1), "--mpi", mpi]
    command = launch(*hosts, "--", "--backend", "gloo", str(SCRIPT), str(here))
    path = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    result = own_bed.run("h0", command, timeout=120, env=path, cwd=here)
    assert result.returncode == 0, result.output
    assert {path.name: path.read_text() for path in here.iterdir()} == {"0-0": "h0", "0-1": "h1"}, result.output
