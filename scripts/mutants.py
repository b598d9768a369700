"""Change one expression at a time, and list the changes that no test notices; see scripts/mutants.sh.

mutmut changes a copy of the checkout, and forks a process for each mutant, which ends after 5 times the time of its
tests. `tests/survivors.txt` has the mutants that may survive, each with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SURVIVORS = ROOT / "tests" / "survivors.txt"
_ENOUGH = 0.85
_SURVIVED = (0, 5, 33)  # mutmut's codes: the tests passed, or no test runs the code

# Left as they are: messages, whose sentences tests do not compare.
_SETTINGS = """
[tool.mutmut]
source_paths = ["cpudist"]
only_mutate = {modules}
also_copy = {others}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = {arguments}
process_isolation = "forkserver"
timeout_multiplier = 5.0
timeout_constant = 3.0
debug = true
do_not_mutate_patterns = ['^\\s*raise \\w', '^\\s*(say|warn|print)\\(']
"""

# A plugin of pytest that every Python process of a test imports, too: mutmut itself learns only from pytest's process
# which functions a test has called. Tests that start no process run first.
_PLUGIN = """
import os

import pytest
from mutmut.mutation import trampoline
from mutmut.state import state

_CALLS = os.environ["CPUDIST_MUTANTS_CALLS"]
_called = set()

def _record(name, caller=None):
    if name not in _called:
        _called.add(name)
        with open(_CALLS, "a") as file:
            file.write(f"{name}\\n")

trampoline.record_trampoline_hit = _record

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    _called.clear()
    if os.path.exists(_CALLS):
        with open(_CALLS) as file:
            state()._stats.update(file.read().split())
        os.unlink(_CALLS)

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("job") is not None)
"""


def main() -> None:
    """Report on each module or folder; exit with 1 where fewer than 85 % of its mutants are killed."""
    parser = argparse.ArgumentParser(prog="scripts/mutants.sh", description=__doc__)
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="of cpudist/: store/values.py, store")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants, drawn with a fixed seed")
    parser.add_argument("--seed", type=int, default=47, help="default: %(default)s")
    parser.add_argument("--tests", nargs="+", help="files or folders of tests/; default: that of the module")
    parser.add_argument("--jobs", action="store_true", help="run the tests marked `job`, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # of `timeout`: leave no copy and no process
    os.environ["OMP_NUM_THREADS"] = "1"  # a forked process does not have OpenMP's threads
    with tempfile.TemporaryDirectory(prefix="cpudist-mutants-") as folder:
        listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.rstrip("\0").split("\0"):
            if os.path.lexists(ROOT / name):
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name, follow_symlinks=False)
        os.chdir(folder)
        observers = Path("cpudist/observability/observers.py")  # it would take mutmut's functions for public methods
        observers.write_text(observers.read_text().replace('startswith("_"):', 'startswith(("_", "x_", "x\u01c1")):'))
        Path("called.py").write_text(_PLUGIN)
        Path("sitecustomize.py").write_text(
            "import os\nif os.environ.get('MUTANT_UNDER_TEST') == 'stats':\n    import called\n"
        )
        os.environ["PYTHONPATH"] = os.path.join(os.getcwd(), "mutants")
        os.environ["CPUDIST_MUTANTS_CALLS"] = os.path.join(os.getcwd(), "calls.txt")
        # The store's process runs in Python's isolated mode, without the environment's packages.
        for found in Path(sysconfig.get_path("purelib")).glob("mutmut*"):
            shutil.copytree(found, found.name)
        try:
            enough = [_report(module, options) for module in options.modules]
        finally:
            _end_jobs()
    sys.exit(not all(enough))


def _report(module: str, options: argparse.Namespace) -> bool:
    """Print the surviving mutants of `module`; return whether enough were killed."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    source = Path("cpudist", module)
    modules = [str(source)] if source.is_file() else sorted(map(str, source.rglob("*.py")))
    tests = [_tests_of(name) for name in options.tests or [module]]
    shutil.rmtree("mutants", ignore_errors=True)
    Path("mutants").mkdir()  # in PYTHONPATH: Python does not look again for a folder that was missing
    settings = _SETTINGS.format(
        modules=modules,
        others=[name for name in os.listdir() if name not in ("cpudist", "mutants")],
        tests=tests,
        arguments=["-p", "no:cacheprovider", "-p", "called", *([] if options.jobs else ["-m", "not job"])],
    )
    Path("pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    names = sorted(name for path in modules for name in _mutants(path))
    if options.sample is not None and options.sample < len(names):
        names = random.Random(options.seed).sample(names, options.sample)
    print(f"== {module}: {len(names)} mutants, {' '.join(tests)}", flush=True)
    log = Path("mutants.log")
    with log.open("w") as file:
        done = subprocess.run(["mutmut", "run", "--max-children", "1", *names], stdout=file, stderr=file, check=False)
    if done.returncode:
        sys.exit(re.sub(r"\S? ?(Running stats|Generating mutants) *\n", "", log.read_text())[-5000:])
    codes: dict[str, int | None] = {}
    for path in modules:
        codes |= json.loads(Path("mutants", f"{path}.meta").read_text())["exit_code_by_key"]
    survivors = [name for name in names if codes[name] in _SURVIVED]
    may_survive, accepted = _SURVIVORS.read_text().splitlines(), 0
    for name in survivors:
        _, _, *lines = get_diff_for_mutant(name).splitlines()
        diff = [line for line in lines if line.startswith(("-", "+"))]
        function = name.partition("__mutmut_")[0].replace("x_", "").replace("xǁ", "").replace("ǁ", ".")
        if function in may_survive or any(line.removeprefix("+").strip() in may_survive for line in diff):
            accepted += 1
        else:
            print(f"\n{function}{'' if codes[name] == 0 else ': no test runs it'}", *diff, sep="\n")
    killed, all_ = len(names) - len(survivors), len(names)
    print(f"\n== {module}: {killed} of {all_} killed, {killed / all_:.0%}; {accepted} may survive", flush=True)
    return killed + accepted >= _ENOUGH * all_


def _end_jobs() -> None:
    """Kill processes that tests have started and that are left, because their mutant was killed after its time."""
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PYTHONPATH") == os.environ["PYTHONPATH"]:
                process.kill()


def _tests_of(module: str) -> str:
    """Return the tests of `module`: those of its folder, or for a file of cpudist/ itself its own."""
    path = Path("tests", module)
    if len(path.parts) == 2 and path.suffix:
        path = path.with_name(f"test_{path.name}")
    while not path.exists():
        path = path.parent
    return str(path)


def _mutants(path: str) -> list[str]:
    """Return the names of the mutants of a file."""
    from mutmut.configuration import reset_config
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    reset_config()  # it was read for the last module
    mutated = mutate_file_contents(path, Path(path).read_text())
    return [get_mutant_name(Path(path), name) for name in mutated.mutant_names]


if __name__ == "__main__":
    main()
