"""Real labelled text that every Python has: docstrings of its standard library, labelled with their packages."""

from __future__ import annotations

import ast
import csv
import sysconfig
from pathlib import Path

# The files of a package, and how a person would call what it is about.
_PACKAGES = {"asyncio": "asyncio", "email": "email", "_pydecimal.py": "decimal", "unittest": "unittest"}
_OF_EACH = 110


def write(folder: Path) -> tuple[Path, Path]:
    """CSV files to train and to evaluate on, of some 350 and 90 docstrings, in columns "text" and "label"."""
    rows = [(text, label) for place, label in _PACKAGES.items() for text in _docstrings(place)[:_OF_EACH]]
    paths = folder / "train.csv", folder / "validation.csv"
    # The labels occur in another order in each: their ids must not be those of their first appearance.
    parts = [row for index, row in enumerate(rows) if index % 5], rows[::-5]
    for path, part in zip(paths, parts, strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])
    return paths


def _docstrings(place: str) -> list[str]:
    """The first paragraphs of the docstrings in a file or folder, each once, in an order that tells nothing."""
    path = Path(sysconfig.get_path("stdlib")) / place
    found = set()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node) or ""
                found.add(" ".join(text.split("\n\n")[0].split()))
    return sorted(found - {""}, key=lambda text: (text[::-1], text))
