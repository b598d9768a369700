"""Data to try lora.py and question_answering.py on, from the docstrings of Python's own standard library.

    python examples/stdlib_data.py runs/data

writes train.csv and validation.csv, docstrings labelled with the packages that they are from, and questions.json, in
the form of SQuAD: what does a function do, if the context says so of this and of others?
"""

import ast
import csv
import json
import sys
import sysconfig
from pathlib import Path

# The files of a package, and how a person would call what it is about.
PACKAGES = {"asyncio": "asyncio", "email": "email", "_pydecimal.py": "decimal", "unittest": "unittest"}
DOCSTRINGS_OF_EACH = 110
FUNCTIONS_IN_A_CONTEXT = 4


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    summaries = {label: read_summaries(place) for place, label in PACKAGES.items()}
    write_tables(folder, summaries)
    write_questions(folder / "questions.json", summaries)


def read_summaries(place: str) -> dict[str, str]:
    """The first paragraphs of the docstrings in a file or folder of the library, by function or class."""
    path = Path(sysconfig.get_path("stdlib")) / place
    found = {}
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if summary:
                    found.setdefault(node.name, summary)
    return found


def write_tables(folder: Path, summaries: dict[str, dict[str, str]]) -> None:
    """Tables of some 350 and 90 rows with the columns "text" and "label"."""
    rows = []
    for label, by_name in summaries.items():
        # By their ends: an order that tells nothing.
        texts = sorted(set(by_name.values()), key=lambda text: (text[::-1], text))
        rows += [(text, label) for text in texts[:DOCSTRINGS_OF_EACH]]
    # The labels occur in another order in each table.
    parts = {"train.csv": [row for index, row in enumerate(rows) if index % 5], "validation.csv": rows[::-5]}
    for name, part in parts.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *part])


def write_questions(path: Path, summaries: dict[str, dict[str, str]]) -> None:
    """Write a question about each of some 900 functions and classes. A context describes a few of one package."""
    paragraphs = []
    for label, by_name in summaries.items():
        entries = list(by_name.items())
        for start in range(0, len(entries), FUNCTIONS_IN_A_CONTEXT):
            some = entries[start : start + FUNCTIONS_IN_A_CONTEXT]
            context, qas = "", []
            for name, summary in some:
                context += f"{name}: "
                answers = [{"text": summary, "answer_start": len(context)}]
                qas.append({"id": f"{label}.{name}", "question": f"What does {name} do?", "answers": answers})
                context += f"{summary}\n"
            paragraphs.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"data": [{"title": "docstrings", "paragraphs": paragraphs}]}), encoding="utf-8")


if __name__ == "__main__":
    main()
