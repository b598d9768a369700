"""Write container/requirements.txt: every package that the image installs, with its version and its hash.

What the image needs only to compile the backend goes to container/build-requirements.txt.

python3.11 scripts/lock.py    # on x86-64, with the Python of the image's Debian; PIP_EXTRA_INDEX_URL as for the image

The newest versions that pyproject.toml allows are taken. Each has the hash of one file, the one for this Python and
processor, so that `pip install --require-hashes` takes no other.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# PyPI's torch brings gigabytes of CUDA libraries; PyTorch's own index of CPU builds has +cpu. Hugging Face's example
# scripts import evaluate; setuptools builds cpudist itself.
WANTED = ["torch==2.13.0+cpu", f"{ROOT}[impi,plot,examples]", "evaluate==0.4.6", "setuptools>=77"]
BUILD = f"{ROOT}[build]"


def ask(wanted: list[str]) -> set[str]:
    """Ask pip what it would install into an empty environment, and return a line for each package but cpudist."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = json.loads(subprocess.run([*pip, *wanted], check=True, stdout=subprocess.PIPE).stdout)
    lines = set()
    for package in report["install"]:
        name, version = (package["metadata"][key] for key in ("name", "version"))
        if name != "cpudist":
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            lines.add(f"{name.lower().replace('_', '-')}=={version} --hash=sha256:{digest}\n")
    return lines


def main() -> None:
    """Write both files."""
    installed = ask(WANTED)
    for file, what, lines in (
        ("requirements.txt", "what the image installs", installed),
        ("build-requirements.txt", "what compiling needs besides", ask([*WANTED, BUILD]) - installed),
    ):
        head = f"# Written by scripts/lock.py: {what}.\n"
        (ROOT / "container" / file).write_text(head + "".join(sorted(lines)))


if __name__ == "__main__":
    main()
