"""Change one expression at a time, and list the changes that no test notices; see scripts/mutants.sh.

mutmut makes the mutants, in a copy of the checkout. One process imports the tests there, and forks for each mutant.
`tests/survivors.txt` has the mutants that may survive, each with the reason.
"""

import argparse
import ctypes
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import psutil
import pytest
from _pytest.runner import runtestprotocol
from mutmut.mutation import trampoline
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

# Appended to mutmut's module, because processes in Python's isolated mode do not read sitecustomize. It reports the
# functions that a test calls.
_RECORDER = """
import os

if os.environ.get("MUTANT_UNDER_TEST") == "stats":
    def record_trampoline_hit(name, caller=None):
        with open(os.environ["CPUDIST_MUTANTS_CALLS"], "a") as file:
            file.write(f"{name}\\n")
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
        report = _Report(mutants)
        try:
            pytest.main(["-qq", "-p", "no:cacheprovider", *tests], plugins=[_Forks(names, report.add, options.jobs)])
        finally:
            _end_processes()
    sys.exit(not report.end(options.module))


def _copy_checkout(folder: Path) -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.rstrip("\0").split("\0"):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(_SETTINGS)
    # The store's process runs in Python's isolated mode, without the environment's packages.
    for found in Path(sysconfig.get_path("purelib")).glob("mutmut*"):
        shutil.copytree(found, folder / found.name)
    with (folder / "mutmut/mutation/trampoline.py").open("a") as file:
        file.write(_RECORDER)
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

    Args:
        names: the mutants.
        tried: is called with the name of each, and with "killed", "late", "survived" or "no test".
        jobs: whether to run all tests marked `job`, too.
    """

    def __init__(self, names: list[str], tried: Callable[[str, str], None], jobs: bool) -> None:
        self._names, self._tried, self._jobs = names, tried, jobs

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Try all mutants once pytest has imported the tests."""
        if session.testsfailed:
            return None  # pytest reports the errors of the import
        items = [item for item in session.items if self._jobs or not item.get_closest_marker("job") or _forks(item)]
        _fork("stats", lambda: _measure(items), 7200)
        measured = json.loads(Path("measured.json").read_text())
        items.sort(key=lambda item: measured[item.nodeid][0])
        for name in self._names:
            function = name.partition("__mutmut_")[0]
            its = [item for item in items if function in measured[item.nodeid][1]]
            limit = 30 + 10 * sum(measured[item.nodeid][0] for item in its)
            self._tried(name, _fork(name, lambda: _survives(its), limit) if its else "no test")  # noqa: B023
        return True


def _forks(item: pytest.Item) -> bool:
    """Return whether a test forks ranks, also in a helper of its module, instead of starting them, which is fast."""
    names = vars(item.module)  # type: ignore[attr-defined]
    calls = item.function.__code__.co_names  # type: ignore[attr-defined]
    return "fork_ranks" in calls or ("fork_ranks" in names and "mpirun" not in names)


def _fork(mutant: str, test: Callable[[], bool], seconds: float) -> str:
    """Run `test` on a mutant in a fork, for at most `seconds`; return the result."""

    def run() -> None:
        os.setsid()  # a mutant may signal its process group
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
    exec(_RECORDER, vars(trampoline))
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


def _survives(items: list[pytest.Item]) -> bool:
    """Return whether no test fails twice: on a busy machine one may fail by itself."""
    return all(_passes(item) or _passes(item) for item in items)


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False))


def _end_processes() -> None:
    """Kill everything that this process and its tests have started."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        psutil.wait_procs(children, 5)


class _Report:
    """Prints each mutant that survives and may not, and the counts at the end."""

    def __init__(self, mutants: dict[str, MutatedFile]) -> None:
        self._mutants, self._counts = mutants, Counter[str]()
        self._may_survive = {*_SURVIVORS.read_text().splitlines()}
        self._file = os.fdopen(os.dup(1), "w", buffering=1)  # pytest captures standard output

    def add(self, name: str, result: str) -> None:
        """Count a mutant's result."""
        self._counts[result] += 1
        if result in ("killed", "late"):
            return
        function = name.partition("__mutmut_")[0].replace(".x_", ".").replace(".x\u01c1", ".").replace("\u01c1", ".")
        changed = _diff(self._mutants[name], name.rpartition(".")[2])
        if function in self._may_survive or any(
            line.removeprefix("+").strip() in self._may_survive for line in changed
        ):
            self._counts["accepted"] += 1
        else:
            untested = ": no test runs it" if result == "no test" else ""
            print(f"\n{function}{untested}", *changed, sep="\n", file=self._file)

    def end(self, module: str) -> bool:
        """Print the counts, also of an interrupted run; return whether enough were killed."""
        accepted, all_ = self._counts.pop("accepted", 0), self._counts.total()
        killed, late = self._counts["killed"] + self._counts["late"], self._counts["late"]
        share = f"{killed} of {all_} killed ({late} by time), {killed / max(all_, 1):.0%}"
        print(f"\n== {module}: {share}; {accepted} may survive", file=self._file)
        return killed + accepted >= _ENOUGH * max(all_, 1)


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
