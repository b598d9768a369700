"""`cpudist docs`: show and search the documentation, which comes with the package."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cpudist
from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "show a page of the documentation, or search it"
DESCRIPTION = """\
Show a page of the documentation, such as docs/slow-networks.md, or the lines that have all WORDs. Without either: list
all pages.
"""
EPILOG = """\
examples:
    cpudist docs slow-networks
    cpudist docs "CPU quota"
"""

PAGES = Path(cpudist.__file__).parent / "docs"
_WIDEST = 100  # columns of text


def add_options(parser: Parser) -> None:
    what = "a page's name, or what to search for, such as CPU quota"
    parser.add_argument("words", nargs="*", metavar="{PAGE | WORD...}", help=what)


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Show a page (in a pager on a terminal), print the results of a search, or list all pages."""
    wanted = " ".join(options.words)
    page = PAGES / f"{wanted.removeprefix('docs/').removesuffix('.md')}.md"
    if page.is_file():
        _show(page.read_text(encoding="utf-8"))
    elif found := list(_search(options.words)):
        print(*found, sep="\n")
        print(f"\nA page is shown by its name: cpudist docs PAGE; the files are in {PAGES}")
    else:
        raise UserError(f"no page is called {wanted} or mentions it; see the list of pages: cpudist docs")


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


def _search(words: Sequence[str]) -> Iterator[str]:
    """Yield each line that has all words or quoted phrases, after its page's name; without words, the pages' titles."""
    for path in sorted(PAGES.glob("*.md")):
        for line in path.read_text(encoding="utf-8").splitlines()[: None if words else 1]:
            if all(word.lower() in line.lower() for word in words):
                yield f"{path.stem:<18}{line.lstrip('# ')}"
