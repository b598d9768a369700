"""Messages as users read them, in tests/messages.txt: the name of a case, and its lines below it."""

from pathlib import Path

FILE = Path(__file__).parents[1] / "messages.txt"


def recorded(case: str) -> list[str]:
    """Return the lines of a case."""
    blocks = FILE.read_text(encoding="utf-8").split("\n\n")
    return next(lines for name, *lines in map(str.splitlines, blocks) if name == f"[{case}]")
