"""`cpudist docs`: show and search the documentation, which comes with the package."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import cpudist
from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "show a page of the documentation, or search it"
DESCRIPTION = """\
Show a page of the documentation, such as docs/slow-networks.md, or the places that have most of the
WORDs of a question, the best ones first. Without either: list all pages.
"""
EPILOG = """\
examples:
    cpudist docs slow-networks
    cpudist docs "CPU quota"
"""

PAGES = Path(cpudist.__file__).parent / "docs"
_WIDEST = 100  # columns of text
_MOST_HITS = 12
_PART = 70  # characters of a line that a search shows


def add_options(parser: Parser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="{PAGE | WORD...}", help="a page's name, or what to search for, such as CPU quota"
    )


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Show a page (in a pager on a terminal), print the results of a search, or list all pages."""
    wanted = " ".join(options.words)
    if not wanted:
        for path in sorted(PAGES.glob("*.md")):
            title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            print(f"{path.stem:<18}{title}")
        print(f"\nThe files are in {PAGES}")
        return
    page = PAGES / f"{wanted.removeprefix('docs/').removesuffix('.md')}.md"
    if page.is_file():
        _show(page.read_text(encoding="utf-8"))
    elif found := _search(options.words):
        print(*found, sep="\n")
        print("\nA page is shown by its name: cpudist docs PAGE")
    else:
        raise UserError(f"no page is called {wanted} or speaks of it; see the list of pages: cpudist docs")


def _show(text: str) -> None:
    # Imported here, because the import takes a tenth of a second.
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.width = min(console.width, _WIDEST)
    if sys.stdout.isatty():
        with console.pager(styles=True):
            console.print(Markdown(text))
    else:
        console.print(Markdown(text))


def _search(sought: Sequence[str]) -> list[str]:
    """Return the headings of the sections that have most of the words (or quoted phrases), each with its best line."""
    sought = [word.lower() for word in sought]
    found = []
    for path in sorted(PAGES.glob("*.md")):
        for section in re.split(r"^#+ ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            heading, *lines = section.splitlines()
            if (count := _count(section, sought)) * 3 >= len(sought) * 2:
                line = max([heading, *lines], key=lambda line: _count(line, sought))
                shown = heading if line == heading else f"{heading}: {_part(line, sought)}"
                found.append((count + 2 * _count(heading, sought), f"{path.stem:<18}{shown}"))
    return [hit for _, hit in sorted(found, key=lambda one: one[0], reverse=True)[:_MOST_HITS]]


def _count(text: str, sought: Sequence[str]) -> int:
    return sum(word in text.lower() for word in sought)


def _part(line: str, sought: Sequence[str]) -> str:
    """Return the words of a line from the first of `sought` on, and some before."""
    begin = max(min(line.lower().index(word) for word in sought if word in line.lower()) - 30, 0)
    return ("…" if begin else "") + line[begin : begin + _PART].strip()
