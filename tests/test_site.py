"""The site is built without a dead link, and the documentation names all that there is."""

import importlib
import re
import sys
from pathlib import Path

import jobs
import pytest

from cpudist.version import __version__

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md"))]
PAGES += sorted((ROOT / "docs").glob("*.md"))
REFERENCE = (ROOT / "docs/reference.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Such as the test or the program that shows that a sentence is true."""
    named = re.findall(r"`(?:[\w.]+ )*((?:cpudist|examples|scripts|tests|benchmarks)/[\w./]*\w)", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_site_has_every_page() -> None:
    plan = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"- {page.name}\n" not in plan] == []


@pytest.mark.job
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """MkDocs warns of dead links and anchors, and of names in the Python reference that do not exist."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    jobs.completed(words, 300, {"NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT)
    assert "notebook_launcher" in (tmp_path / "reference/python/index.html").read_text()
    commands = (tmp_path / "reference/commands/index.html").read_text()
    for anchor in ("cpudist-train--compress", "cpudist-train-m", "cpudist-launch--ppn", "cpudist-bench--only"):
        assert f'id="{anchor}"' in commands
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/llms.txt").read_text()):
        assert (tmp_path / link).is_file(), link
    for page in tmp_path.rglob("index.html"):
        assert not re.search(r"\n- <strong>|<td>#", page.read_text()), page  # lists and tables that MkDocs did not end
    messages = (tmp_path / "reference/messages.md").read_text()
    for text in ("no backend can be used", "warning: not using", "all_to_all_single needs contiguous tensors"):
        assert text in messages  # of Python, of its warnings, of C++


def test_tables_show_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not: `python scripts/figures.py`."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    figures = importlib.import_module("figures")
    page = figures.PAGE.read_text()
    assert re.findall(r"<!-- table: (\w+) -->", page) == [*figures.TABLES]
    assert figures.fill(page) == page


def test_the_image_has_the_version() -> None:
    """These are the places from which people copy its name."""
    manifests = (ROOT / "examples/kubernetes").glob("*.yaml")
    for page in (ROOT / "Dockerfile", ROOT / "docs/kubernetes.md", ROOT / "docs/slurm.md", *manifests):
        assert set(re.findall(r"\bcpudist:(\d[\d.]*\d)", page.read_text())) <= {__version__}, page


def test_the_reference_names_every_environment_variable() -> None:
    used = {
        name for path in (ROOT / "cpudist").rglob("*.py") for name in re.findall(r"CPUDIST_[A-Z_]+", path.read_text())
    }
    assert len(used) > 5
    assert {name for name in used if f"`{name}`" not in REFERENCE} == set()
