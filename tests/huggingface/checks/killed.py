"""Runs course.py and kills rank 0 once: EVENT PART, at an event of Python's auditing that concerns that part of a path.

Restarted, it goes on: a file beside the output folder says that it has been killed.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

event, part = sys.argv[1:3]
del sys.argv[1:3]
killed = Path(f"{sys.argv[sys.argv.index('--output_dir') + 1]}.{event}")


def kill(name: str, args: tuple[object, ...]) -> None:
    if name == event and part in str(args[0]) and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["RANK"] == "0":
    sys.addaudithook(kill)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
