"""`cpudist docs`: show a page of the documentation, which the package brings along."""

from __future__ import annotations

import argparse
import pydoc
from pathlib import Path

import cpudist
from cpudist.cli.parser import Parser
from cpudist.errors import UserError
from cpudist.launchers import Launcher

HELP = "show a page of the documentation"
DESCRIPTION = "Show a page of the documentation, such as docs/slow-networks.md. Without PAGE: list all pages."
EPILOG = None

PAGES = Path(cpudist.__file__).parent / "docs"


def add_options(parser: Parser) -> None:
    """Add the options of `cpudist docs`."""
    parser.add_argument("page", nargs="?", metavar="PAGE", help="its name, such as slow-networks")


def run(options: argparse.Namespace, _launcher: Launcher) -> None:
    """Show a page, in a pager on a terminal; or print the names of all pages with their titles.

    Raises:
        UserError: there is no such page.
    """
    if options.page is None:
        for path in sorted(PAGES.glob("*.md")):
            title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            print(f"{path.stem:<18}{title}")
        print(f"\nThe files are in {PAGES}")
        return
    path = PAGES / f"{options.page.removeprefix('docs/').removesuffix('.md')}.md"
    if not path.is_file():
        raise UserError(f"there is no page {options.page}; see the list of pages: cpudist docs")
    pydoc.pager(path.read_text(encoding="utf-8"))
