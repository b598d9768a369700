"""The files that a bed's hosts share: who has which address, and how they let each other in."""

import subprocess
from pathlib import Path

_CLIENT = """\
Host *
  IdentityFile /etc/ssh/client_key
  BatchMode yes
  StrictHostKeyChecking yes
  ConnectTimeout 5
"""

_SERVER = """\
HostKey /etc/ssh/server_key
AuthorizedKeysFile /etc/ssh/authorized_keys
StrictModes no
MaxStartups 200
"""


def write(folder: Path, addresses: dict[str, tuple[str, ...]]) -> None:
    """Write `hosts` (for /etc/hosts) and `ssh` (for /etc/ssh) into `folder`, with keys of this bed alone.

    `addresses` gives each host's; its name leads to the first of them.
    """
    lines = "".join(f"{first} {name}\n" for name, (first, *_) in addresses.items())
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + lines)
    ssh = folder / "ssh"
    ssh.mkdir()
    for name in ("server_key", "client_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(ssh / name)], check=True, timeout=60)
    server = (ssh / "server_key.pub").read_text()
    known = [",".join([name, *own]) for name, own in addresses.items()]
    (ssh / "ssh_known_hosts").write_text("".join(f"{names} {server}" for names in known))
    (ssh / "client_key.pub").rename(ssh / "authorized_keys")
    (ssh / "ssh_config").write_text(_CLIENT)
    (ssh / "sshd_config").write_text(_SERVER)
