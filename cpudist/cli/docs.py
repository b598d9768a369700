"""`cpudist docs`: show and search the documentation, which comes with the package."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import cpudist
from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "show a page of the documentation, or search it"
DESCRIPTION = """\
Show a page of the documentation, such as docs/slow-networks.md, or the places that speak of WORD.
Without either: list all pages.
"""
EPILOG = """\
examples:
    cpudist docs slow-networks
    cpudist docs "CPU quota"
"""

PAGES = Path(cpudist.__file__).parent / "docs"
_WIDEST = 100  # columns of text
_HITS_OF_A_PAGE = 5


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
    elif found := list(_search(wanted)):
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


def _search(wanted: str) -> Iterator[str]:
    """Yield the places that contain `wanted`, by page and heading."""
    sought = wanted.lower()
    for path in sorted(PAGES.glob("*.md")):
        heading, hits = "", []
        for line in path.read_text(encoding="utf-8").splitlines():
            title = re.match(r"#+ (.*)", line)
            heading = title[1] if title else heading
            if sought in line.lower():
                hits.append(f"  {heading}" if title else f"  {heading}: {_part(line, sought)}")
        if hits:
            yield path.stem
            yield from hits[:_HITS_OF_A_PAGE]
        if len(hits) > _HITS_OF_A_PAGE:
            yield f"  and {len(hits) - _HITS_OF_A_PAGE} more"


def _part(line: str, sought: str) -> str:
    """Return the words of a line around `sought`."""
    begin = max(line.lower().index(sought) - 30, 0)
    return ("…" if begin else "") + line[begin : begin + 30 + len(sought) + 30].strip()
