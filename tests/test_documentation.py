"""The documentation's links lead somewhere, its tables name all that there is, and examples run as they stand."""

import doctest
import importlib
import inspect
import re
import sys
from functools import reduce
from pathlib import Path

import jobs
import pytest
import torch
from ranks import fork_ranks

import cpudist

ROOT = Path(__file__).parents[1]
NAMES = sorted({*cpudist.__all__} - {"__version__", "backends"})
NAMES += [f"backends.{name}" for name in ("get", "names", "register")]
_REMEDY = re.compile(r"; |(^|[:?] )(copy|export|give|go|make|mount|remove|set|start|take)\b|\bmust (be|hold|lie)\b")
_NAMES_IT_OTHERWISE = {
    # The reason, at the end, says what to do.
    "backend … cannot be used on rank …: …",
    "backend xla cannot be used: …",
    "ccl: communication is out of use in this process: …",
    "ccl: … failed: …",
    "it does not answer",  # the end of another message
}


def test_files_that_a_page_names_exist_and_the_site_has_every_page() -> None:
    """Such as the test or the program that shows that a sentence is true."""
    folders = r"`(?:[\w.]+ )*((?:cpudist|examples|scripts|tests|benchmarks)/[\w./]*\w)"
    plan = (ROOT / "mkdocs.yml").read_text()
    for page in [*ROOT.glob("README.md"), *ROOT.glob("CONTRIBUTING.md"), *ROOT.glob("[bd]*/*.md")]:
        missing = [name for name in re.findall(folders, page.read_text()) if not (ROOT / name).exists()]
        assert missing == [], page
        assert page.parent.name != "docs" or f"- {page.name}\n" in plan, page


@pytest.mark.job
def test_the_site_is_built_without_a_warning_and_every_error_names_its_remedy(tmp_path: Path) -> None:
    """MkDocs warns of dead links and anchors, and of unknown names in the Python reference; not with --quiet."""
    site = tmp_path / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    jobs.completed(words, 300, {"NO_MKDOCS_2_WARNING": "1"}, ROOT)
    assert "notebook_launcher" in (site / "reference/python/index.html").read_text()
    commands = (site / "reference/commands/index.html").read_text()
    for anchor in ("cpudist-train--compress", "cpudist-train-m", "cpudist-launch--ppn", "cpudist-bench--only"):
        assert f'id="{anchor}"' in commands
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/llms.txt").read_text()):
        assert (site / link).is_file(), link
    for page in site.rglob("index.html"):
        assert not re.search(r"\n- <strong>|<td>#", page.read_text()), page  # lists and tables that MkDocs did not end
    messages = (site / "reference/messages.md").read_text()
    for text in ("no backend can be used", "warning: not using", "all_to_all_single needs contiguous tensors"):
        assert text in messages  # of Python, of its warnings, of C++
    lists = re.findall(r"\*\*Errors\*\*\n\n((?:- .*\n)+)", messages)
    errors = set(re.findall(r"^- ``(.*) ``$", "".join(lists), re.MULTILINE))
    assert len(errors) > 200
    assert {error for error in errors if not _REMEDY.search(error)} - _NAMES_IT_OTHERWISE == set()


def test_tables_and_pictures_show_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """If not: `python scripts/figures.py`, `pictures.py`. Another matplotlib draws the same in other words."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    figures = importlib.import_module("figures")
    page = figures.PAGE.read_text()
    assert re.findall(r"<!-- table: (\w+) -->", page) == [*figures.TABLES]
    assert figures.fill(page) == page
    matplotlib = pytest.importorskip("matplotlib")
    pictures = importlib.import_module("pictures")
    for name in pictures.PICTURES:
        content = pictures.path(name).read_bytes()
        assert content == pictures.svg(name) or f"Matplotlib v{matplotlib.__version__}".encode() not in content, name


def test_the_image_has_the_version() -> None:
    """These are the places from which people copy its name."""
    manifests = (ROOT / "examples/kubernetes").glob("*.yaml")
    for page in (ROOT / "Dockerfile", ROOT / "docs/kubernetes.md", ROOT / "docs/slurm.md", *manifests):
        assert set(re.findall(r"\bcpudist:(\d[\d.]*\d)", page.read_text())) <= {cpudist.__version__}, page


def test_the_reference_names_every_environment_variable() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "cpudist").rglob("*.py"))
    used, reference = set(re.findall(r"CPUDIST_[A-Z_]+", sources)), (ROOT / "docs/reference.md").read_text()
    assert len(used) > 5
    assert {name for name in used if f"`{name}`" not in reference} == set()


def _examples(name: str) -> doctest.DocTest:
    text = inspect.getdoc(reduce(getattr, name.split("."), cpudist)) or ""
    names = {"cpudist": cpudist, "sys": sys, "torch": torch, "__name__": "__main__"}
    return doctest.DocTestParser().get_doctest(text, names, name, None, None)


def _run() -> None:
    cpudist.init("gloo")
    runner = doctest.DocTestRunner()
    for name in sorted({*NAMES} - {"notebook_launcher"}):
        runner.run(_examples(name))
    assert runner.failures == 0


@pytest.mark.job
def test_each_public_name_has_an_example_which_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name in NAMES if not _examples(name).examples] == []
    monkeypatch.chdir(tmp_path)
    ended = fork_ranks(_run)
    assert [status for status, _ in ended] == [0, 0], ended
    code = "import cpudist, doctest, torch; doctest.run_docstring_examples(cpudist.notebook_launcher, vars())"
    ended = jobs.completed([sys.executable, "-c", code], timeout=120)
    assert ended.stdout == ""
