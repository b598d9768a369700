"""Pages of the site that are not in docs/: MkDocs calls this module's functions (hooks in mkdocs.yml).

The README is the first page. The reference of commands is read from their parsers, that of messages from the
sources. Links to other files of the repository lead to copies of them in the site.
"""

import argparse
import ast
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import cpudist
from cpudist.cli import main, train
from cpudist.processes import lost_ranks

_ROOT = Path(__file__).resolve().parents[1]
_CODE_WORD = re.compile(r"(?<=[>\s])[^\s<>]{2,28}(?=[<\s])")
_LINK = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")
_PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
_DRAWING = re.compile(r'<pre>(?=(?:(?!</pre>).)*(?:[│└├]|"> {10,}[^<\s]))', re.DOTALL)  # lines, or columns
_ERRORS = ("UserError", "StartupTimeout", "ArgumentTypeError", "RanksMissing", "StoreLost", "RuntimeError")
_CPP_ERROR = re.compile(
    r"\b(?:value_error|check_value|check_type|type_error|backend_error|TransportError|runtime_error|abandon_all)"
    r"\((.*?)(?:,\s*finished)?\);",
    re.DOTALL,
)
# Searches find pages that name everything, or are of interest to few, after the guides, and what is urgent first.
_FOUND_LATE = ("reference/python.md", "reference/messages.md", "xla.md", "kubernetes.md", *_PROJECT)
_BOOSTS = {**dict.fromkeys(_FOUND_LATE, 0.3), "troubleshooting.md": 2}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and copies of the files that pages link to."""
    pages = {"index.md": (_ROOT / "README.md").read_text(), **{name: (_ROOT / name).read_text() for name in _PROJECT}}
    pages["reference/commands.md"] = "".join(_commands())
    pages["reference/python.md"] = "".join(_python())
    pages["reference/messages.md"] = "".join(_messages())
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    texts = {**pages, **{f"docs/{page.name}": page.read_text() for page in (_ROOT / "docs").glob("*.md")}}
    linked = {
        _target(path.replace("index.md", "README.md"), link) for path, text in texts.items() for link in _links(text)
    }
    for path in sorted(linked):
        if (_ROOT / path).is_file() and _page(path) == path and not path.endswith(".md"):
            files.append(File.generated(config, path, abs_src_path=str(_ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links that are right in the repository be right in the site."""
    site = page.file.src_uri
    source = "README.md" if site == "index.md" else site if site in _PROJECT else f"docs/{site}"

    def moved(found: re.Match[str]) -> str:
        target = posixpath.relpath(_page(_target(source, found[2])), posixpath.dirname(site) or ".")
        return f"{found[1]}{target}{found[3] or ''}{found[4]}"

    if site in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[site]}
    return markdown if site.startswith("reference/") else _LINK.sub(moved, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep words of inline code in one piece, which browsers break behind hyphens; mark blocks that are drawings."""

    def kept(code: re.Match[str]) -> str:
        return _CODE_WORD.sub(r'<span class="word">\g<0></span>', code[0])

    return _DRAWING.sub('<pre class="drawing">', re.sub(r"<code>[^<>\n]*</code>", kept, html))


def on_page_context(context: Any, page: Any, config: Any, **_: Any) -> Any:
    """Write the page's Markdown beside it, for the programs that read llms.txt."""
    target = Path(config.site_dir, page.file.src_uri)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page.markdown)
    return context


def _links(text: str) -> Iterator[str]:
    return (found[2] for found in _LINK.finditer(text))


def _target(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _page(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def _commands() -> Iterator[str]:
    yield "# Commands\n\nWhat `--help` prints. Each option is a link to itself.\n"
    subparsers = (each for each in main._parser()._actions if isinstance(each, argparse._SubParsersAction))
    for parser in (train._parser(), *next(subparsers).choices.values()):
        yield from _help(parser)


def _help(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield what a parser says of a command, with an anchor for each option, such as `cpudist-launch--ppn`."""
    formatter = parser._get_formatter()
    usage = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    yield f"\n## {parser.prog}\n\n```text\n{usage}\n```\n\n{_escaped(parser.description or '')}\n"
    for group in parser._action_groups:
        if group._group_actions:
            yield f"\n**{group.title}**\n"
        for action in group._group_actions:
            if action.help == argparse.SUPPRESS:
                continue
            names = action.option_strings or [f"-{action.dest}"]
            name = next((name for name in names if name.startswith("--")), names[0])
            anchor = f"{parser.prog.replace(' ', '-')}{name}"
            shown = formatter._format_action_invocation(action).strip()
            said = _escaped(formatter._expand_help(action)) if action.help else "see below"
            yield f"\n[`{shown}`](#{anchor}){{ #{anchor} }}\n:   {said}\n"
    if parser.epilog:
        yield f"\n```text\n{parser.epilog}```\n"


def _escaped(text: str) -> str:
    return re.sub(r"([*<\[\]])", r"\\\1", text)


def _python() -> Iterator[str]:
    yield (
        "# Python\n\nAll are names of the package `cpudist`. Examples begin after `import cpudist, torch` and, but for"
        " `notebook_launcher`, `cpudist.init()` on two ranks. The tests run them, and two programs that use most:\n"
    )
    for example in ("one_program.py", "train_digits.py"):
        yield f'\n??? example "examples/{example}"\n\n'
        code = f"```python\n{(_ROOT / 'examples' / example).read_text()}```\n"
        yield "".join(f"    {line}" if line.strip() else line for line in code.splitlines(keepends=True))
    yield "\n[Training from a notebook](../notebooks.md) has one for `notebook_launcher`.\n"
    homes = {name: module for module, names in cpudist._NAMES.items() for name in names}
    for name in sorted(homes, key=lambda name: (name[0].isupper(), name)):
        yield f"\n::: {homes[name]}.{name}\n"
    yield "\n::: cpudist.errors.UserError\n\n::: cpudist.errors.StartupTimeout\n"
    yield "\n## Backends of other packages\n\nAn entry point of the group `cpudist.backends` names such a class.\n"
    for name in ("register", "get", "names", "interface.Option", "interface.Backend"):
        yield f"\n::: cpudist.backends.{name}\n    options:\n      heading_level: 3\n"


def _messages() -> Iterator[str]:
    yield (
        "# Messages\n\nEvery line that cpudist says, by the part that says it. `…` is a name or a number. What a"
        " message does not say itself stands under [when a job hangs or fails]"
        "(../troubleshooting.md#messages-rank-killed-out-of-memory-timed-out).\n\n"
        '<input id="message-filter" type="search" placeholder="Words, or a whole line of your terminal" hidden>\n'
    )
    readers = {".py": _of_python, ".cpp": _of_cpp, ".hpp": _of_cpp}
    for folder in sorted({path.parent for path in (_ROOT / "cpudist").rglob("*.*") if path.suffix in readers}):
        files = [path for path in folder.iterdir() if path.suffix in readers]
        said = {pair for path in files for pair in readers[path.suffix](path)}
        if Path(lost_ranks.__file__) in files:
            said |= {("Warnings and news", f"rank … on … {how}; it was last in …") for how in lost_ranks._HOW.values()}
        if said:
            yield f"\n## {folder.relative_to(_ROOT)}\n\n<details markdown>\n<summary>{len(said)} messages</summary>\n"
            for kind in ("Errors", "Warnings and news"):
                texts = sorted(text for its_kind, text in said if its_kind == kind)
                if texts:
                    yield f"\n**{kind}**\n\n" + "".join(f"- ``{text} ``\n" for text in texts)
            yield "\n</details>\n"


def _of_python(path: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the errors and lines that a module makes."""
    tree = ast.parse(path.read_text())
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text = " ".join(_text(node.args[0], texts).split())
            if (name in _ERRORS or name == "say") and re.search(r"\w{3}", text):
                yield "Errors" if name in _ERRORS else "Warnings and news", text


def _of_cpp(path: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and text of the errors that a C++ file throws: its literals, and `…` between them."""
    for statement in _CPP_ERROR.findall(path.read_text()):
        arguments = re.sub(r'"\s+"', "", statement)  # one literal over several lines
        text = re.sub(r'(?:^|")[^"]*(?:"|$)', "…", arguments.strip().rstrip(")").removesuffix('"')).removeprefix("…")
        text = text.removeprefix("ccl: ")
        if re.search(r"\w{3}", text):
            yield "Errors", f"ccl: {'…' if text[0] in ' :' else ''}{text}"


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    """Return the text of an expression, with `…` for what only a run knows; `texts` has the module's own constants."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, texts) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, texts) if isinstance(node.value, ast.Name) else "…"
    if isinstance(node, ast.Name):
        return texts.get(node.id, "…")
    if isinstance(node, ast.IfExp):
        return _text(node.body, texts) or _text(node.orelse, texts)
    if isinstance(node, ast.BinOp):
        return _text(node.left, texts) + _text(node.right, texts)
    return "…"
