"""Runs course.py and kills rank 0: EVENT PART, at an event of Python's auditing that concerns a path with that part."""

import os
import runpy
import signal
import sys
from pathlib import Path

event, part = sys.argv[1:3]
del sys.argv[1:3]


def kill(name: str, args: tuple[object, ...]) -> None:
    if name == event and part in str(args[0]):
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["RANK"] == "0":
    sys.addaudithook(kill)
runpy.run_path(str(Path(__file__).with_name("course.py")), run_name="__main__")
