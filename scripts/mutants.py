"""Change one expression at a time, and list the changes that no test notices; see scripts/mutants.sh.

mutmut makes the mutants, in a copy of the checkout. One process imports the tests there, and forks for each mutant.
`tests/survivors.txt` has the mutants that may survive, each with the reason.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import os
import random
import runpy
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation.file_mutation import MutatedFile, mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

ROOT = Path(__file__).resolve().parents[1]
_SURVIVORS = ROOT / "tests" / "survivors.txt"
_ENOUGH = 0.85
_PR_SET_CHILD_SUBREAPER = 36

# mutmut leaves messages as they are, whose sentences tests do not compare.
_SETTINGS = """
[tool.mutmut]
source_paths = ["cpudist"]
do_not_mutate_patterns = ['^\\s*raise \\w', '^\\s*(say|warn|print)\\(']
"""

# Every Python process of a test imports this, too, to report the functions that the test calls.
_RECORDER = """
import os

if os.environ.get("MUTANT_UNDER_TEST") == "stats":
    from mutmut.mutation import trampoline

    def record(name, caller=None):
        with open(os.environ["CPUDIST_MUTANTS_CALLS"], "a") as file:
            file.write(f"{name}\\n")

    trampoline.record_trampoline_hit = record
"""


def main() -> None:
    """Report on a module or folder; exit with 1 if fewer than 85 % of its mutants are killed."""
    parser = argparse.ArgumentParser(prog="scripts/mutants.sh", description=__doc__)
    parser.add_argument("module", metavar="MODULE", help="of cpudist/: store/values.py, store")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants, drawn with a fixed seed")
    parser.add_argument("--seed", type=int, default=47, help="default: %(default)s")
    parser.add_argument("--tests", nargs="+", help="files or folders of tests/; default: that of the module")
    parser.add_argument("--jobs", action="store_true", help="run the tests marked `job`, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # of `timeout`: leave no copy and no process
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # processes that lose their parent become children of this one
    with tempfile.TemporaryDirectory(prefix="cpudist-mutants-") as folder:
        _copy_checkout(Path(folder))
        os.chdir(folder)
        sys.path.insert(0, folder)
        # A forked process does not have OpenMP's threads.
        os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=folder, CPUDIST_MUTANTS_CALLS=f"{folder}/calls.txt")
        mutants = _mutate(Path("cpudist", options.module))
        names = sorted(mutants)
        if options.sample is not None and options.sample < len(names):
            names = random.Random(options.seed).sample(names, options.sample)
        tests = [_tests_of(name) for name in options.tests or [options.module]]
        print(f"== {options.module}: {len(names)} mutants, {' '.join(tests)}", flush=True)
        forks = _Forks(names, jobs=options.jobs)
        try:
            pytest.main(["-qq", "-p", "no:cacheprovider", *tests], plugins=[forks])
        finally:
            _end_processes()
    if len(forks.results) < len(names):
        sys.exit(2)  # pytest has said why
    sys.exit(not _report(options.module, forks.results, mutants))


def _copy_checkout(folder: Path) -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.rstrip("\0").split("\0"):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(_SETTINGS)
    (folder / "sitecustomize.py").write_text(_RECORDER)
    # The store's process runs in Python's isolated mode, without the environment's packages.
    for found in Path(sysconfig.get_path("purelib")).glob("mutmut*"):
        shutil.copytree(found, folder / found.name)
    observers = folder / "cpudist/observability/observers.py"  # it would take mutmut's functions for public methods
    observers.write_text(observers.read_text().replace('startswith("_"):', 'startswith(("_", "x_", "x\u01c1")):'))


def _mutate(source: Path) -> dict[str, MutatedFile]:
    """Put all mutants of a module or folder into its files; return the file of each by the mutant's name."""
    mutants = {}
    for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
        mutated = mutate_file_contents(str(path), path.read_text())
        path.write_text(mutated.code)
        mutants |= {get_mutant_name(path, name): mutated for name in mutated.mutant_names}
    return mutants


def _tests_of(module: str) -> str:
    """Return the tests of `module`: those of its folder, or for a file of cpudist/ itself its own."""
    path = Path("tests", module)
    if len(path.parts) == 2 and path.suffix:
        path = path.with_name(f"test_{path.name}")
    while not path.exists():
        path = path.parent
    return str(path)


class _Forks:
    """A plugin of pytest that runs the tests of each mutant in a fork, those that take least first.

    Attributes:
        results: "killed", "late", "survived" or "no test", by the mutant's name.
    """

    def __init__(self, names: list[str], *, jobs: bool) -> None:
        self._names, self._jobs = names, jobs
        self.results: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Try all mutants once pytest has imported the tests."""
        if session.testsfailed:
            return None  # pytest reports the errors of the import
        # Tests that fork ranks always run: they are fast.
        items = [
            item
            for item in session.items
            if self._jobs or not item.get_closest_marker("job") or hasattr(item.module, "fork_ranks")  # type: ignore[attr-defined]
        ]
        _fork("stats", lambda: _measure(items), 7200)
        measured = json.loads(Path("measured.json").read_text())
        items.sort(key=lambda item: measured[item.nodeid][0])
        for name in self._names:
            function = name.partition("__mutmut_")[0]
            its = [item for item in items if function in measured[item.nodeid][1]]
            limit = 30 + 10 * sum(measured[item.nodeid][0] for item in its)
            self.results[name] = _fork(name, lambda: all(map(_passes, its)), limit) if its else "no test"  # noqa: B023
        return True


def _fork(mutant: str, test: Callable[[], bool], seconds: float) -> str:
    """Run `test` on a mutant in a fork, for at most `seconds`; return the result."""

    def run() -> None:
        os.environ["MUTANT_UNDER_TEST"] = mutant
        survived = False
        try:
            survived = test()
        finally:
            os._exit(not survived)

    process = get_context("fork").Process(target=run)
    process.start()
    process.join(seconds)
    result = {None: "late", 0: "survived"}.get(process.exitcode, "killed")
    _end_processes()
    return result


def _measure(items: list[pytest.Item]) -> bool:
    """Write how long each test takes, in seconds, and the functions that it calls; none for a test that fails."""
    runpy.run_path("sitecustomize.py")
    measured, calls = {}, Path(os.environ["CPUDIST_MUTANTS_CALLS"])
    for item in items:
        calls.write_text("")
        began = time.monotonic()
        passed = _passes(item)
        if not passed:
            print(f"fails without a mutant: {item.nodeid}", file=sys.__stderr__)
        measured[item.nodeid] = (time.monotonic() - began, sorted({*calls.read_text().split()}) if passed else [])
    Path("measured.json").write_text(json.dumps(measured))
    return True


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False))


def _end_processes() -> None:
    """Kill everything that this process and its tests have started."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, 5)


def _report(module: str, results: dict[str, str], mutants: dict[str, MutatedFile]) -> bool:
    """Print the surviving mutants; return whether enough were killed."""
    may_survive, accepted = _SURVIVORS.read_text().splitlines(), 0
    survivors = [name for name, result in results.items() if result in ("survived", "no test")]
    for name in survivors:
        function = name.partition("__mutmut_")[0].replace(".x_", ".").replace(".x\u01c1", ".").replace("\u01c1", ".")
        changed = _diff(mutants[name], name.rpartition(".")[2])
        if function in may_survive or any(line.removeprefix("+").strip() in may_survive for line in changed):
            accepted += 1
        else:
            print(f"\n{function}{': no test runs it' if results[name] == 'no test' else ''}", *changed, sep="\n")
    killed, all_ = len(results) - len(survivors), len(results)
    late = sum(result == "late" for result in results.values())
    print(f"\n== {module}: {killed} of {all_} killed ({late} by time), {killed / all_:.0%}; {accepted} may survive")
    return killed + accepted >= _ENOUGH * all_


def _diff(mutated: MutatedFile, function: str) -> list[str]:
    """Return the lines of a mutant that differ from the original, marked + and -."""
    lines = mutated.code.splitlines()
    spans = mutated.line_span_by_function_name
    original, changed = (spans[name] for name in (f"{function.partition('__mutmut_')[0]}__mutmut_orig", function))
    one, other = (
        [line for line in lines[span.start - 1 : span.end] if "__mutmut_" not in line] for span in (original, changed)
    )
    return [line[0] + line[2:] for line in difflib.ndiff(one, other) if line[0] in "+-"]


if __name__ == "__main__":
    main()
