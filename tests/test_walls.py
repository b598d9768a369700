"""A wall that `lint-imports` cannot see."""

import re
from pathlib import Path

import cpudist

PACKAGE = Path(cpudist.__file__).parent


def test_no_backend_of_an_entry_point_is_named_outside_its_folder() -> None:
    """xla declares its options, hooks and findings to commands, doctor, notebooks and Trainer as any other package."""
    guest = PACKAGE / "backends" / "xla"
    # Variables of the environment, which are set or handed on, and names in accelerate and transformers.
    variables = re.compile(r"\"(USE_TORCH_)?XLA_?\"|\b(is)?_torch_xla_available\b")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if guest not in path.parents
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"xla(?!bel)", variables.sub("", line), re.IGNORECASE)
    ]
    assert found == []
